"""The results of paper C for reading: accuracy against the corrupted share, and what rounds of Propose-Test-Release cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdpbc.experiments import ptr_curves
from tfdpbc.experiments.paper_c import CLEAN, kind_of
from tfdpbc.experiments.setting import Experiment
from tfdpbc.experiments.statement import NONE, shown

Rows = Sequence[Mapping[str, Any]]


def text(experiment: Experiment, rows: Rows, refused: Mapping[str, str], delta: float) -> str:
    """A line for each setting that was trained, then the plan of each aggregation, then what must be known of them."""
    cells = [["setting", "got", "failed tests", "epochs", "step"]]
    for row in rows:
        if "accuracy" in row:
            failures = row["test_failures"]
            failed = "–" if failures is None else f"{100 * failures:.1f} %"
            cells.append([row["setting"], got(row), failed, str(row["epochs"]), f"{row['config']['learning_rate']:g}"])
    missing = sum("accuracy" not in row for row in rows)
    lines = [
        f"{experiment.name} (paper {experiment.paper}, {experiment.where}): {experiment.title}",
        f"Claim: {experiment.claim}",
        *(_aligned(cells) if len(cells) > 1 else ()),
        *([f"Not trained: {missing} of {len(rows)} settings"] if missing else ()),
        *(f"{name}: not trained: {why}" for name, why in refused.items()),
        *_plans(rows, delta),
        *experiment.notes,
    ]
    adversaries = {stated["adversary"] for row in rows if (stated := _stated(row))["released_model"] != NONE}
    lines += [f"Adversary: {adversary}." for adversary in sorted(adversaries)]
    trained = [row["seeds"] for row in rows if "seeds" in row]
    if trained:
        lines.append(f"Seeds: {max(trained)}, known: the guarantees hold only against those who do not know them.")
    return "\n".join(lines)


def got(row: Mapping[str, Any]) -> str:
    """The accuracy at the end, with its spread over the seeds."""
    mean, std = row["accuracy"]["mean"], row["accuracy"]["std"]
    return f"{mean:.2f} %" + (f" ± {std:.2f} ({row['seeds']} seeds)" if std is not None else "")


def _stated(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is stated of the run, or, where nothing was trained, of the scale of the experiment."""
    return row.get("run", row["paper_scale"])


def _plans(rows: Rows, delta: float) -> list[str]:
    cells = [["aggregation", "C", "σ", "F of m", "τ", "b", "t", "failures planned", f"ε (δ={delta:g})"]]
    done = set()
    for row in rows:
        kind, stated = kind_of(row["setting"])[0].partition("@")[0], _stated(row)
        if kind in done:
            continue
        done.add(kind)
        figures = [f"{stated[name]:.4g}" if name in stated else "–" for name in KEYS]
        private = stated["released_model"] != NONE
        cells.append(
            [
                kind,
                f"{row['config']['norm']:g}",
                f"{stated['noise_multiplier']:.4g}" if private else "–",
                f"{stated['trim']} of {stated['contributions']}" if "trim" in stated else "–",
                *figures,
                "–" if "threshold" not in stated else f"{100 * planned_failures(row):.2g} %",
                shown(stated["epsilon"]) if private else "∞ (no privacy)",
            ]
        )
    return _aligned(cells)


KEYS = ("release_norm", "laplace_scale", "threshold")


def planned_failures(row: Mapping[str, Any]) -> float:
    """The share of failed tests where as many norms are above τ as the plan assumes to be corrupted: Pr[Lap(b) < t − Δ]."""
    stated, assumed = _stated(row), row["config"]["robust"]["assumed"]
    expected = assumed * stated["contributions"]
    margin = stated["trim"] - expected - 3 * math.sqrt(expected)
    return 0.5 * math.exp(min(0.0, (stated["threshold"] - margin) / stated["laplace_scale"]))


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def pictures(rows: Rows, kind: str = "svg") -> dict[str, bytes]:
    """File name → contents: for each attack the accuracy against the corrupted share, a curve for each aggregation."""
    from tfdpbc.reporting import plots

    series: dict[str, dict[str, list[tuple[float, float, float | None]]]] = {}
    trained = [(*kind_of(row["setting"]), row["accuracy"]) for row in rows if "accuracy" in row]
    for attack in dict.fromkeys(attack for _, attack, _, _ in trained if attack != CLEAN):
        for aggregator, found, share, accuracy in trained:
            if found in (attack, CLEAN) and "@" not in aggregator:
                point = 100 * share, accuracy["mean"], accuracy["std"]
                series.setdefault(attack, {}).setdefault(aggregator, []).append(point)
    return {
        f"{attack}.{kind}": plots.curves(curves, f"corrupted share (%): {attack}", "test accuracy (%)", kind=kind)
        for attack, curves in series.items()
    }


def accounting_text(experiment: Experiment, rows: Rows, delta: float) -> str:
    """The table of `ptr_curves.table`."""
    cells = [["σ", "rounds", *ptr_curves.METHODS.values()]]
    for row in rows:
        figures = [shown(row[name]) for name in ptr_curves.METHODS]
        cells.append([f"{row['noise_multiplier']:g}", str(row["rounds"]), *figures])
    one = ptr_curves.release(1.0)
    return "\n".join(
        [
            f"{experiment.name} (paper {experiment.paper}, {experiment.where}): {experiment.title}",
            f"Claim: {experiment.claim}",
            *_aligned(cells),
            f"ε at δ = {delta:g} of rounds at rate {ptr_curves.RATE:g} with F = {one.trim}, t = {one.threshold:g}, b = "
            f"{one.laplace_scale:g}, τ/C = {one.release_norm:g}. All are certified but the lower bound, below which no Rényi "
            "analysis that knows the unsampled curve alone can go.",
        ]
    )


def accounting_pictures(rows: Rows, kind: str = "svg") -> dict[str, bytes]:
    """ε against the number of rounds, and the divergence of one release against the order, for each σ."""
    from tfdpbc.reporting import plots

    found = {}
    for noise in dict.fromkeys(row["noise_multiplier"] for row in rows):
        some = [row for row in rows if row["noise_multiplier"] == noise]
        curves = {
            label: [(row["rounds"], row[name], None) for row in some] for name, label in ptr_curves.METHODS.items()
        }
        found[f"rounds-sigma={noise:g}.{kind}"] = plots.curves(curves, "rounds", "ε", kind=kind, log=True, log_y=True)
        orders = ptr_curves.ORDERS
        renyi = ptr_curves.divergences(ptr_curves.release(noise), ptr_curves.RATE, orders)
        curves = {
            label: list(zip(orders.tolist(), np.asarray(values).tolist(), [None] * len(orders), strict=True))
            for label, values in renyi.items()
        }
        found[f"orders-sigma={noise:g}.{kind}"] = plots.curves(
            curves, "order", "Rényi divergence (nats)", kind=kind, log=True, log_y=True
        )
    return found
