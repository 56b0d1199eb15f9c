"""Groups of similar size: as good as the best of all partitions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpbc.clipping.clusters import by_order_of_magnitude


def spread(logs, group):
    return sum(((logs[group == g] - logs[group == g].mean()) ** 2).sum() for g in set(group))


def best(logs, groups):
    """By trying every way to cut the sorted values."""
    ordered, n = np.sort(logs), len(logs)
    return min(
        spread(ordered, np.searchsorted(cuts, np.arange(n), "right"))
        for cuts in itertools.combinations(range(1, n), groups - 1)
    )


@settings(max_examples=60)
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=8), st.data())
def test_no_partition_is_better(values, data):
    groups = data.draw(st.integers(1, len(values)))
    found = by_order_of_magnitude(tf.constant(values, tf.float32), groups).numpy()
    logs = np.log(np.float32(values).astype(np.float64))
    assert set(found) == set(range(groups))
    assert spread(logs, found) <= best(logs, groups) + 1e-3  # float32 sums of squares of up to 40²
    # Larger values are never in a smaller group.
    assert (np.diff(found[np.argsort(logs, kind="stable")]) >= 0).all()


def test_orders_of_magnitude():
    values = tf.constant([100.0, 0.01, 1.2, 0.012, 90.0, 0.9, 110.0, 1e-5])
    np.testing.assert_array_equal(by_order_of_magnitude(values, 4), [3, 1, 2, 1, 3, 2, 3, 0])


@pytest.mark.parametrize("groups", [1, 3, 62])
def test_equal_values_still_give_so_many_groups(groups):
    found = by_order_of_magnitude(tf.ones([62]), groups).numpy()
    assert set(found) == set(range(groups))
