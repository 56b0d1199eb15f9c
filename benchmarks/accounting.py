"""How long one accounting answer takes, and how much memory: `python benchmarks/accounting.py`.

Each line is measured in a process of its own, after imports, so that neither caches nor earlier peaks flatter it. Memory is
the peak resident size of that process, imports included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

CASES = {
    "shuffling g=64 E=100 N=1e6 m=64 s=16": "mixture(shuffling(1_000_000, 64, 16, 97_600, 64), 2.0)",
    "subsampling g=64 E=100 N=1e6 m=64 s=16": "mixture(subsampling(1_000_000, 64, 16, 97_600, 64), 2.0)",
    "subsampling T=1e6 N=1e5 m=50 s=1 g=1": "mixture(subsampling(100_000, 50, 1, 1_000_000), 20.0)",
    "shuffling T=1e6 N=5e7 m=256 g=64": "mixture(shuffling(50_000_000, 256, 1, 1_000_000, 64), 2.0)",
    "subsampling T=1e6 N=6e4 m=600 s=100 g=600": "mixture(subsampling(60_000, 600, 100, 1_000_000, 600), 1e3)",
    "poisson q=0.01 T=1e3": "poisson(0.01, 1.0, 1000)",
    "poisson q=1e-3 T=1e6": "poisson(0.001, 1.0, 1_000_000)",
    "poisson q=1e-3 T=1e6 g=64": "poisson(0.001, 1.0, 1_000_000, 64)",
    "poisson q=1e-4 T=1e6, epsilon about 0.01": "poisson(1e-4, 24.4, 1_000_000)",
    "poisson q=1e-4 T=1e6, epsilon about 500": "poisson(1e-4, 0.2094, 1_000_000)",
    "poisson sigma=1e-3": "poisson(0.05, 1e-3, 100)",
    "fixed size p=64/54000 T=42187 L=8": "fixed_size(64 / 54_000, 2.5, 42_187, 8)",
    "poisson q=1e-2 T=1e4 g=8": "poisson(0.01, 1.0, 10_000, 8)",
    "fixed size p=64/54000 T=1e6 g=8": "fixed_size(64 / 54_000, 2.5, 1_000_000).group(8)",
    "balls in bins T=1e3 E=1e3": "balls_in_bins(1000, 1.0, 1000)",
    "balls in bins T=1e6 E=1 g=4": "balls_in_bins(1_000_000, 0.8, 1, 4)",
    "shuffled lower bound T=235 E=60": "lower(235, 0.55, 235 * 60)",
    "shuffled lower bound T=1e6 E=1": "lower(1_000_000, 0.5, 1_000_000)",
    "PTR q=.02 T=1e3": "ptr(0.02, 1.0, 1000)",
    "PTR q=1e-4 T=1e6": "ptr(1e-4, 1.0, 1_000_000)",
    "PTR q=1 T=100 sigma=20": "ptr(1.0, 20.0, 100)",
    "calibrate balls in bins T=1e3 E=100 to 0.01": "calibrated(lambda s: balls_in_bins(1000, s, 100), 0.01)",
    "calibrate fixed size T=1e6 to 3": "calibrated(lambda s: fixed_size(64 / 54_000, s, 1_000_000), 3.0)",
    "calibrate poisson q=.01 T=1e4 to 500": "calibrated(lambda s: poisson(0.01, s, 10_000), 500.0)",
    "calibrate PTR q=.02 T=1e3 to 3": "calibrated(lambda s: ptr(0.02, s, 1000), 3.0)",
    "calibrate poisson q=1e-4 T=1e6 to 3": "calibrated(lambda s: poisson(1e-4, s, 1_000_000), 3.0)",
    "calibrate shuffling g=8 to 0.01": "calibrated(lambda s: mixture(shuffling(1024, 16, 4, 160, 8), s), 0.01)",
}


def measure(expression: str, delta: float) -> dict[str, float]:
    """Runs one case in this process: ε at `delta` and f at 0.1, seconds, peak megabytes."""
    from tfdpbc.accounting import (
        GaussianMixture,
        balls_in_bins,
        fixed_size,
        poisson,
        shuffled,
        shuffling,
        smallest_noise,
        subsampling,
    )
    from tfdpbc.accounting.ptr import ProposeTestRelease

    def release(rate, noise, rounds):
        return ProposeTestRelease(20, 6, 2.0, 0.1, 1.0, noise).trade_off(rate, rounds)

    names = {
        "balls_in_bins": balls_in_bins.balls_in_bins,
        "lower": lambda *plan: {"epsilon": shuffled.lower_bound(*plan, delta)},
        "ptr": release,
        "mixture": GaussianMixture.of,
        "shuffling": shuffling,
        "subsampling": subsampling,
        "poisson": poisson,
        "fixed_size": fixed_size,
        "calibrated": lambda make, target: make(smallest_noise(lambda s: make(s).epsilon(delta), target)),
    }
    begun = time.perf_counter()
    found = eval(expression, names)
    if not isinstance(found, dict):
        found = {"epsilon": found.epsilon(delta), "f": found.f(0.1)}
    seconds = time.perf_counter() - begun
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"f": float("nan"), **found, "seconds": seconds, "megabytes": megabytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--only", help="run the cases whose name holds this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(CASES[options.case], options.delta)))
        return
    print("| case | epsilon | f(0.1) | seconds | MB |\n|---|---|---|---|---|")
    for name in CASES:
        if options.only and options.only not in name:
            continue
        command = [sys.executable, __file__, "--case", name, "--delta", str(options.delta)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        numbers = f"{found['epsilon']:.6g} | {found['f']:.4g} | {found['seconds']:.2f} | {found['megabytes']:.0f}"
        print(f"| {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
