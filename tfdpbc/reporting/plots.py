"""The plots of the report, as SVG texts. Draws on figures of its own: no global matplotlib state, no display."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

GAUSSIANS = (0.25, 0.5, 1.0, 2.0, 4.0)


def metric(rows: Sequence[Mapping[str, float]], name: str) -> str | None:
    """One metric per epoch, on training and validation data; None if the history has neither."""
    return _per_epoch(rows, {"training": name, "validation": f"val_{name}"}, name)


def epsilon(rows: Sequence[Mapping[str, float]], delta: float) -> str | None:
    """What was spent after each epoch; None if the history has no epsilon."""
    return _per_epoch(rows, {f"epsilon at delta = {delta:g}": "epsilon"}, "epsilon", bottom=0.0)


def trade_off(curve: Sequence[tuple[float, float]]) -> str:
    """The trade-off curve of the run between the Gaussian ones G_mu: (alpha, least type II error of the adversary)."""
    figure, axes = _figure()
    _draw_trade_off(axes, curve, "this run")
    return _svg(figure)


def _draw_trade_off(axes, curve: Sequence[tuple[float, float]], label: str) -> None:
    alpha = np.linspace(0.0, 1.0, 401)
    for mu in GAUSSIANS:
        axes.plot(alpha, norm.cdf(norm.isf(alpha) - mu), color="0.7", linewidth=0.8)
        middle = norm.sf(mu / 2)  # where the curve crosses the diagonal
        axes.annotate(f"$G_{{{mu:g}}}$", (middle, middle), color="0.5", fontsize=8)
    axes.plot([0, 1], [1, 0], color="0.7", linewidth=0.8, linestyle="--", label="perfect privacy")
    axes.plot(*zip(*curve, strict=True), color="C0", linewidth=2, label=label)
    axes.set(xlabel="type I error", ylabel="least type II error", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="upper right")


def account(
    curve: Sequence[tuple[float, float]],
    series: Mapping[str, tuple[str, Sequence[tuple[float, float]]]],
    kind: str,
) -> bytes:
    """The trade-off curve of a plan beside each of `series`: name of x → (name of y, points); a file of `kind`."""
    figure = Figure(figsize=(4.2 * (1 + len(series)), 3.8), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(series))
    _draw_trade_off(first, curve, "this plan")
    for axes, (xlabel, (ylabel, points)) in zip(others, series.items(), strict=True):
        finite = [(x, y) for x, y in points if np.isfinite(y)]
        axes.plot(*zip(*finite, strict=True) if finite else ([], []), marker="o", markersize=3)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_ylim(bottom=0.0)
        axes.grid(alpha=0.3)
    return _file(figure, kind)


def curves(
    series: Mapping[str, Sequence[tuple[float, float, float | None]]],
    xlabel: str,
    ylabel: str,
    *,
    kind: str = "svg",
    marks: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    log: bool = False,
    log_y: bool = False,
) -> bytes:
    """Curves in one picture; a file of `kind`.

    Args:
      series: label → points (x, y, half the length of an error bar or None); points that are not finite are left out.
      marks: label → single points, for what was claimed.
      log, log_y: logarithmic axes.
    """
    figure, axes = _figure(width=6.4 if len(series) > 1 else 4.8)
    for label, points in series.items():
        points = [(x, y, bar or 0.0) for x, y, bar in points if np.isfinite(x) and np.isfinite(y)]
        if points:
            x, y, bars = zip(*points, strict=True)
            axes.errorbar(x, y, bars if any(bars) else None, marker="o", markersize=3, capsize=3, label=label)
    for label, points in (marks or {}).items():
        axes.plot(*zip(*points, strict=True), "k*", markersize=9, label=label)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if log:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    if len(series) > 1 or marks:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0) if len(series) > 6 else None)
    return _file(figure, kind)


def _file(figure: Figure, kind: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()


def _per_epoch(rows, columns: Mapping[str, str], ylabel: str, bottom: float | None = None) -> str | None:
    figure, axes = _figure()
    for label, column in columns.items():
        points = [(row["epoch"], row[column]) for row in rows if column in row]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    if not axes.lines:
        return None
    axes.set(xlabel="epoch", ylabel=ylabel)
    axes.set_ylim(bottom=bottom)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return _svg(figure)


def _figure(width: float = 4.8):
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    return figure, axes


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    content = text.getvalue()
    return content[content.index("<svg") :]
