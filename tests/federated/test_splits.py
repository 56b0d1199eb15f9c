import numpy as np
import pytest

from tfdpbc.federated.splits import split


@pytest.mark.parametrize("kind", ["iid", "label"])
def test_parts_are_disjoint_of_equal_size_and_repeatable(kind):
    y = np.random.default_rng(0).integers(10, size=1003)
    parts = split(kind, y, 5, seed=1)
    joined = np.concatenate(parts)
    assert {len(part) for part in parts} == {200} and len(set(joined.tolist())) == 1000
    assert all((a == b).all() for a, b in zip(parts, split(kind, y, 5, seed=1), strict=True))
    assert any((a != b).any() for a, b in zip(parts, split(kind, y, 5, seed=2), strict=True))


def test_skewed_by_label():
    y = np.repeat(np.arange(10), 100)
    seen = [len(set(y[part].tolist())) for part in split("label", y, 5, classes_per_client=2)]
    assert max(seen) <= 2
    assert min(len(set(y[part].tolist())) for part in split("iid", y, 5)) == 10


def test_too_many_clients():
    with pytest.raises(ValueError, match="clients"):
        split("label", np.arange(10), 6)
