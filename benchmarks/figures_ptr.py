"""Draws seed paper C's Figure 2: `python benchmarks/figures_ptr.py` writes docs/images/ptr_rdp.svg.

The Rényi divergence of one Poisson-sampled Propose-Test-Release against the order: the white-box bound, the black-box upper
bound, and the lower bound on any black-box one. The text of the paper that we have lost the figure's parameters: they are
the reference ones of accounting.md section 6 here, with a rate of 0.02; every one can be set.
"""

from __future__ import annotations

import argparse
import pathlib
import re

import numpy as np

from tfdpbc.accounting.ptr import ProposeTestRelease
from tfdpbc.experiments.ptr_curves import ORDERS, divergences

FILE = pathlib.Path(__file__).parents[1] / "docs" / "images" / "ptr_rdp.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trim", type=int, default=20)
    parser.add_argument("--threshold", type=float, default=6.0)
    parser.add_argument("--laplace-scale", type=float, default=2.0)
    parser.add_argument("--release-norm", type=float, default=0.1)
    parser.add_argument("--noise", type=float, nargs="+", default=[10.0, 40.0], help="one panel each")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--out", type=pathlib.Path, default=FILE)
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "ptr", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    orders = ORDERS
    figure, panels = plt.subplots(1, len(options.noise), figsize=(4.4 * len(options.noise), 3.4), squeeze=False)
    styles = [("0.6", ":"), ("tab:red", "--"), ("tab:blue", "-"), ("black", (0, (1, 3)))]
    for axis, noise in zip(panels[0], options.noise, strict=True):
        release = ProposeTestRelease(
            options.trim, options.threshold, options.laplace_scale, options.release_norm, 1.0, noise
        )
        found = divergences(release, options.rate, orders)
        for (label, values), (colour, line) in zip(found.items(), styles, strict=True):
            axis.plot(orders, values, color=colour, linestyle=line, label=label)
        worst = np.max(found["white-box"] / found["black-box lower bound"] - 1)
        print(f"sigma={noise:g}: white-box above the lower bound by at most {worst:.2%}")
        axis.set(xscale="log", yscale="log", xlabel="order", title=f"σ = {noise:g}, q = {options.rate:g}")
    panels[0, 0].set_ylabel("Rényi divergence (nats)")
    panels[0, -1].legend(fontsize=7)
    figure.tight_layout()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, metadata={"Date": None})
    text = options.out.read_text()
    options.out.write_text(re.sub(r"[ \t]+\n", "\n", text))
    print(f"{options.out}: {options.out.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
