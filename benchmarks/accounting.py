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
    "calibrate poisson q=1e-4 T=1e6 to 3": "calibrated(lambda s: poisson(1e-4, s, 1_000_000), 3.0)",
    "calibrate shuffling g=8 to 0.01": "calibrated(lambda s: mixture(shuffling(1024, 16, 4, 160, 8), s), 0.01)",
}


def measure(expression: str, delta: float) -> dict[str, float]:
    """Runs one case in this process: ε at `delta` and f at 0.1, seconds, peak megabytes."""
    from tfdpbc.accounting import GaussianMixture, fixed_size, poisson, shuffling, smallest_noise, subsampling

    names = {
        "mixture": GaussianMixture.of,
        "shuffling": shuffling,
        "subsampling": subsampling,
        "poisson": poisson,
        "fixed_size": fixed_size,
        "calibrated": lambda make, target: make(smallest_noise(lambda s: make(s).epsilon(delta), target)),
    }
    begun = time.perf_counter()
    found = eval(expression, names)
    epsilon, f = found.epsilon(delta), found.f(0.1)
    seconds = time.perf_counter() - begun
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"epsilon": epsilon, "f": f, "seconds": seconds, "megabytes": megabytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--only", help="run the cases whose name holds this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(CASES[options.case], options.delta)))
        return
    print(f"{'case':<46}{'epsilon':>14}{'f(0.1)':>12}{'seconds':>10}{'MB':>8}")
    for name in CASES:
        if options.only and options.only not in name:
            continue
        command = [sys.executable, __file__, "--case", name, "--delta", str(options.delta)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{name:<46}{found['epsilon']:>14.6g}{found['f']:>12.4g}{found['seconds']:>10.2f}{found['megabytes']:>8.0f}"
        )


if __name__ == "__main__":
    main()
