"""A second public accountant, where it covers the case: PRV accountant (Gopi, Lee, Wutschitz 2021), an optional install.

It states bounds on ε around its estimate: ours has to lie above its lower bound, and be within 0.2 % of its upper one.
Figures: benchmarks/accountants.py.
"""

import pytest

from tfdpbc.accounting import poisson

CASES = [(0.01, 1.0, 1000), (0.2, 3.0, 50), (64 / 54_000, 0.9, 42_187), (0.001, 0.6, 2000), (0.004, 2.0, 15_000)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of scipy, through theirs
@pytest.mark.parametrize("rate, noise_multiplier, rounds", CASES)
def test_poisson_lies_between_the_bounds_of_the_prv_accountant(rate, noise_multiplier, rounds):
    delta = 1e-5
    prv = pytest.importorskip("prv_accountant", reason="optional: pip install tfdpbc[bench]")
    theirs = prv.PRVAccountant(
        prvs=prv.PoissonSubsampledGaussianMechanism(noise_multiplier=noise_multiplier, sampling_probability=rate),
        max_self_compositions=rounds,
        eps_error=0.02,
        delta_error=delta * 1e-4,
    )
    lower, _, upper = theirs.compute_epsilon(delta=delta, num_self_compositions=[rounds])
    found = poisson(rate, noise_multiplier, rounds).epsilon(delta)
    assert lower <= found <= upper * 1.002 + 1e-4
