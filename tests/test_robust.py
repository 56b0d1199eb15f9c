"""Propose-Test-Release of statistics: what each promises, against brute force; the release against its accounting."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdpbc.robust import ClippedMedian, MarginTest, Statistic, TrimmedSumOfRows

STATISTICS = {
    "median": ClippedMedian(-1.0, 1.0, 0.3, 4),
    "median-of-many": ClippedMedian(-1.0, 1.0, 0.3, 50),
    "trimmed-sum": TrimmedSumOfRows(3, 0.25, 1.0),
}
NUMBERS = st.one_of(st.sampled_from([-2.0, -1.0, 0.0, 0.25, 0.3, 1.0, 2.0]), st.floats(-1, 1, width=32))


def values_of(kind, numbers):
    numbers = np.asarray(numbers, np.float64)
    if isinstance(kind, TrimmedSumOfRows):
        angle = np.arange(len(numbers)) * 2.4
        return numbers[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return numbers


@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_promises_to_the_accountant(name, data):
    kind = STATISTICS[name]
    more = values_of(kind, data.draw(st.lists(NUMBERS, min_size=1, max_size=12)))
    less = np.delete(more, data.draw(st.integers(0, len(more) - 1)), axis=0)
    margins = [kind.margin(values) for values in (more, less)]
    assert all(0 <= margin <= kind.most_margin for margin in margins)
    assert abs(margins[0] - margins[1]) <= 1
    apart = np.linalg.norm(kind.value(more) - kind.value(less))
    assert apart <= (kind.proposed if max(margins) > 0 else kind.largest) + 1e-12
    assert np.linalg.norm(kind.fallback(more) - kind.fallback(less)) <= kind.fallback_sensitivity + 1e-12


def test_the_median_of_odd_and_even_numbers():
    kind = ClippedMedian(0.0, 10.0, 1.0)
    assert [float(kind.value(np.array(v))) for v in ([3.0], [1.0, 2.0], [5.0, 1.0, 99.0], [])] == [3.0, 1.0, 5.0, 0.0]


def test_a_margin_of_the_median_by_hand():
    values = np.array([0.0, 4.9, 5.0, 5.0, 5.1, 5.2, 10.0])
    # Around 5.0, the fourth: [5.0, 5.1], then [4.9, 5.2], then [0, 10].
    assert [ClippedMedian(0.0, 10.0, tau).margin(values) for tau in (0.05, 0.2, 0.5, 10.0)] == [0, 1, 2, 1000]


@pytest.mark.parametrize("name", ["median", "trimmed-sum"])
def test_the_release_is_what_the_accounting_is_about(name):
    """20,000 releases: pass probability and both standard deviations within 5.5 standard errors (1 in 2.6e7 each)."""
    kind, count, rng = STATISTICS[name], 20_000, np.random.default_rng(3)
    test = MarginTest(kind, 1.2, 0.8, 1.5, 0.9)
    values = values_of(kind, [0.05, 0.06, 0.07, 0.08, 0.09])
    found = [test.release(values, rng) for _ in range(count)]
    passed = np.array([one.passed for one in found])
    want = test.accounting.pass_probability(kind.margin(values))
    assert 0.02 < want < 0.98
    assert passed.mean() == pytest.approx(want, abs=5.5 * math.sqrt(want * (1 - want) / count))
    released = np.array([np.ravel(one.value)[0] for one in found])
    for here, exact, std in (
        (passed, kind.value(values), 1.5 * kind.proposed),
        (~passed, kind.fallback(values), 0.9 * kind.fallback_sensitivity),
    ):
        assert stats.kstest((released[here] - np.ravel(exact)[0]) / std, "norm").pvalue > 1e-7


def test_a_statistic_of_ones_own():
    class Constant(Statistic):
        most_margin, proposed, largest, fallback_sensitivity = 5, 0.1, 1.0, 1.0

        def margin(self, values):
            return 7

        def value(self, values):
            return np.zeros(2)

        fallback = value

    test = MarginTest(Constant(), 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="margin must be an integer"):  # it breaks its word
        test.release(np.zeros(3), np.random.default_rng(0))
    with pytest.raises(TypeError, match="rng must be"):
        test.release(np.zeros(3), 3)
    with pytest.raises(ValueError, match="laplace_scale must be"):
        MarginTest(Constant(), 1.0, 0.0, 1.0)


def test_one_outlier_costs_little_where_the_data_agrees():
    """Why one would: of agreeing values the median passes nearly always, with a twentieth of the noise."""
    test = MarginTest(ClippedMedian(0.0, 100.0, 5.0), 20.0, 2.0, 1.0)
    values = np.r_[np.random.default_rng(1).normal(50, 1, 200), 1e9]
    assert test.statistic.margin(values) > 60
    assert test.accounting.epsilon(1e-6) < MarginTest(ClippedMedian(0.0, 100.0, 5.0), 1.0, 0.3, 1.0).accounting.epsilon(
        1e-6
    )
