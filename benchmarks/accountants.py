"""ε of Poisson-sampled rounds by other public accountants: `python benchmarks/accountants.py` (needs `pip install .[bench]`).

All of them account the same plan under add/remove. Rows that end in *: an estimate with the bounds its authors state.
"""

from __future__ import annotations

import argparse
import time
import warnings

CASES = [
    (0.01, 1.0, 1000),
    (0.2, 3.0, 50),
    (64 / 54_000, 0.9, 42_187),
    (0.001, 0.6, 2000),
    (0.004, 2.0, 15_000),
    (0.0001, 0.5, 1_000_000),
]


def ours(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    from tfdpbc.accounting import poisson

    return poisson(rate, noise_multiplier, rounds).epsilon(delta)


def dp_accounting_pld(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(noise_multiplier, sampling_prob=rate)
    return one.self_compose(rounds).get_epsilon_for_delta(delta)


def dp_accounting_rdp(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    import dp_accounting
    from dp_accounting import rdp

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    return rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta)


def prv(rate: float, noise_multiplier: float, rounds: int, delta: float) -> tuple[float, float, float]:
    import prv_accountant

    accountant = prv_accountant.PRVAccountant(
        prvs=prv_accountant.PoissonSubsampledGaussianMechanism(
            noise_multiplier=noise_multiplier, sampling_probability=rate
        ),
        max_self_compositions=rounds,
        eps_error=0.005,
        delta_error=delta * 1e-4,
    )
    return accountant.compute_epsilon(delta=delta, num_self_compositions=[rounds])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=float, default=1e-5)
    delta = parser.parse_args().delta
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    for case in CASES:
        print(f"q={case[0]:.6g} sigma={case[1]:g} T={case[2]}, delta={delta:g}")
        for function in (ours, dp_accounting_pld, dp_accounting_rdp, prv):
            begun = time.perf_counter()
            try:
                found = function(*case, delta)
            except ImportError as error:
                print(f"  {function.__name__:<20} not installed ({error.name})")
                continue
            seconds = time.perf_counter() - begun
            values = found if isinstance(found, tuple) else (found,)
            shown = " .. ".join(f"{value:.6f}" for value in values) + (" *" if len(values) > 1 else "")
            print(f"  {function.__name__:<20} {shown:<36} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
