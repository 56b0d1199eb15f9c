"""Group privacy of paper A: the exact numbers between its bound and the general rule."""

import math

import pytest

from tfdpbc.accounting import Gaussian
from tfdpbc.experiments import groups


@pytest.fixture(scope="module")
def rows():
    return groups.table(1e-5, epochs=4, examples=6400, group_sizes=(1, 8, 64))  # 100 rounds an epoch, none left over


def test_shuffled_batches_never_exceed_the_root(rows):
    chosen = [row for row in rows if row["case"] == "shuffling, batch"]
    assert [row["group_size"] for row in chosen] == [1, 8, 64] and all(row["proven"] for row in chosen)
    for row in chosen:
        g = row["group_size"]
        assert row["mu_bound"] == pytest.approx(math.sqrt(4 * g) / 2)
        assert row["mu_linear"] == pytest.approx(g * math.sqrt(4) / 2)
        assert row["mu_mixture"] <= row["mu_bound"] * (1 + 1e-9)
        # E[c²] = E times the expected number of distinct batches that hold one of g examples of 6400.
        missed = math.prod((6400 - 64 - i) / (6400 - i) for i in range(g))
        assert row["mean_c_squared"] == pytest.approx(4 * 100 * (1 - missed), rel=1e-6)
    assert chosen[0]["mu_mixture"] == pytest.approx(1.0, rel=1e-6)  # exactly √E/σ for one example
    assert chosen[-1]["mu_mixture"] < 0.2 * chosen[-1]["mu_linear"]


def test_what_is_not_proven_elsewhere_is_not_called_proven(rows):
    others = [row for row in rows if row["case"] != "shuffling, batch"]
    assert {row["case"] for row in others} == set(groups.CASES) - {"shuffling, batch"}
    assert not any(row["proven"] for row in others)
    # Individual clipping of a group does exceed √(gE)/σ.
    assert any(row["mu_mixture"] > row["mu_bound"] for row in others if row["case"] == "shuffling, individual")
    # Table 1: E[c²] = E (g + g(g−1)(m−1)/(N−1)).
    row = next(row for row in others if row["case"] == "shuffling, individual" and row["group_size"] == 8)
    assert row["mean_c_squared"] == pytest.approx(4 * (8 + 8 * 7 * 63 / 6399), rel=1e-6)


@pytest.mark.parametrize("mu", [1e-3, 0.5, 3.0, 40.0])
def test_equivalent_mu_is_the_inverse(mu):
    assert groups.equivalent_mu(Gaussian(mu).epsilon(1e-5), 1e-5) == pytest.approx(mu, rel=1e-6)


def test_equivalent_mu_of_no_loss():
    assert groups.equivalent_mu(0.0, 1e-5) == 0.0
