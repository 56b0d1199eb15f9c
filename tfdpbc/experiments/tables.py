"""The results of an experiment for reading: a table, and pictures of what was swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfdpbc.experiments.setting import Experiment
from tfdpbc.experiments.statement import NONE, shown

Rows = Sequence[Mapping[str, Any]]


def text(experiment: Experiment, rows: Rows, refused: Mapping[str, str], delta: float) -> str:
    """Claimed, got, and the guarantees, a line for each setting; then what must be known of them."""
    titles = ["setting", "claimed", "got", "epochs", "σ", "C", "batch", "L", "μ of the paper", f"ε (δ={delta:g})"]
    cells = [titles]
    scaled = any("run" in row and not _at_full_scale(row) for row in rows)
    if scaled:
        titles.append("ε of this run")
    for row in rows:
        config, paper = row["config"], row["paper_scale"]
        line = [row["setting"], row["claimed_words"], got(row), str(row.get("epochs", "–"))]
        if paper["released_model"] == NONE:
            line += ["–", "–", str(config["batch_size"]), str(paper["num_layers"]), "–", "∞ (no privacy)"]
        else:
            line += [
                f"{paper['noise_multiplier']:.4g}",
                f"{config['norm']:.4g}",
                str(config["batch_size"]),
                str(paper["num_layers"]),
                mu(row),
                shown(paper["epsilon"]),
            ]
        if scaled:
            line.append(shown(row["run"].get("epsilon")) if "run" in row else "–")
        cells.append(line)
    widths = [max(len(line[i]) for line in cells) for i in range(len(titles))]
    lines = [
        f"{experiment.name} (paper {experiment.paper}, {experiment.where}): {experiment.title}",
        f"Claim: {experiment.claim}",
        *("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells),
        *(f"{name}: not trained: {why}" for name, why in refused.items()),
        *(f"{row['setting']}: {row['note']}" for row in rows if row["note"]),
        *experiment.notes,
        *_legend(rows, scaled),
    ]
    return "\n".join(lines)


def got(row: Mapping[str, Any]) -> str:
    """The accuracy at the end, with its spread over the seeds."""
    if "accuracy" not in row:
        return "–"
    mean, std = row["accuracy"]["mean"], row["accuracy"]["std"]
    return f"{mean:.2f} %" + (f" ± {std:.2f} ({row['seeds']} seeds)" if std is not None else "")


def mu(row: Mapping[str, Any]) -> str:
    """Paper B's central limit figure of subsampled rounds, paper A's of shuffled batches; with what the paper says."""
    paper = row["paper_scale"]
    claimed = "" if row["claimed_mu"] is None else f" (G_{row['claimed_mu']:g})"
    if paper["mu_clt"] is not None:
        return f"{shown(paper['mu_clt'])}*{claimed}"
    return shown(paper["mu"]) + claimed


def _at_full_scale(row: Mapping[str, Any]) -> bool:
    run, paper = row["run"], row["paper_scale"]
    return all(run.get(key) == paper.get(key) for key in ("num_private", "epochs"))


def _legend(rows: Rows, scaled: bool) -> list[str]:
    private = [row["paper_scale"] for row in rows if row["paper_scale"]["released_model"] != NONE]
    lines = []
    if private:
        lines.append(
            "L: layers that own trainable variables. ε: certified, at the paper's scale"
            + (" (beside it: of the epochs and examples run here)" if scaled else "")
            + f"; neighbouring: {', '.join(sorted({one['neighbouring'] for one in private}))}."
        )
    if any(one["mu_clt"] is not None for one in private):
        lines.append("*: by the central limit formula (4) for subsampled rounds with σ/√L: not certified.")
    for adversary in sorted({one["adversary"] for one in private}):
        lines.append(f"Adversary: {adversary}.")
    voids = sum(one["released_model"].startswith("void") for one in private)
    if voids:
        lines.append(
            f"Released model of {voids} of {len(rows)} settings: no guarantee, its raw moving statistics void it. ε and μ "
            "are those of the noisy updates alone."
        )
    trained = [row["seeds"] for row in rows if "seeds" in row]
    if trained:
        lines.append(
            f"Seeds: {max(trained)}, known: the guarantees hold only against those who do not know them."
            if max(trained) > 1
            else "One seed, known: the guarantees hold only against those who do not know it."
        )
    return lines


def pictures(experiment: Experiment, rows: Rows, kind: str = "svg") -> dict[str, bytes]:
    """File name → contents: the accuracy by epoch, and each sweep with what is claimed."""
    from tfdpbc.reporting import plots

    trained = {row["setting"]: row for row in rows if "accuracy" in row}
    if not trained:
        return {}
    by_epoch = {name: [(x, y, None) for x, y in row["by_epoch"]] for name, row in trained.items()}
    found = {f"by-epoch.{kind}": plots.curves(by_epoch, "epoch", "test accuracy (%)", kind=kind)}
    for number, sweep in enumerate(experiment.sweeps, start=1):
        chosen = [trained[name] for name in sweep.settings if name in trained]
        if len(chosen) < 2:
            continue
        series = {
            "got": [(row["config"][sweep.field], row["accuracy"]["mean"], row["accuracy"]["std"]) for row in chosen]
        }
        claims = [(row["config"][sweep.field], value) for row in chosen for value in row["claimed"]]
        found[f"sweep-{number}.{kind}"] = plots.curves(
            series, sweep.label, "test accuracy (%)", kind=kind, marks={"claimed": claims} if claims else {}, log=True
        )
    return found


def groups_text(experiment: Experiment, rows: Rows, delta: float) -> str:
    """The table of `groups.table`."""
    head = f"{'g':>4}{'E[c²]':>12}{'ε':>11}{'μ exact':>10}{'√(gE)/σ':>10}{'g√E/σ':>10}"
    lines = [
        f"{experiment.name} (paper {experiment.paper}, {experiment.where}): {experiment.title}",
        f"Claim: {experiment.claim}",
    ]
    case = None
    for row in rows:
        if row["case"] != case:
            case = row["case"]
            lines += [f"{case} ({'bound proven' if row['proven'] else 'bound only as N grows'})", head]
        lines.append(
            f"{row['group_size']:>4}{row['mean_c_squared']:>12.2f}{shown(row['epsilon']):>11}{row['mu_mixture']:>10.4f}"
            f"{row['mu_bound']:>10.4f}{row['mu_linear']:>10.4f}"
        )
    lines += [
        f"μ exact: of the Gaussian with the ε of the exact mixture at δ = {delta:g}. ε: certified; under subsampling that "
        "of the best method, which may be smaller than the mixture's.",
        *(f"Adversary: {text}." for text in sorted({row["adversary"] for row in rows})),
    ]
    return "\n".join(lines)


def groups_picture(rows: Rows, kind: str = "svg") -> dict[str, bytes]:
    from tfdpbc.reporting import plots

    first = rows[0]["case"]
    series = {}
    for row in rows:
        point = row["group_size"], row["mu_mixture"], None
        series.setdefault(f"exact: {row['case']}", []).append(point)
    for key, label in (("mu_bound", "√(gE)/σ"), ("mu_linear", "g√E/σ")):
        series[label] = [(row["group_size"], row[key], None) for row in rows if row["case"] == first]
    return {f"groups.{kind}": plots.curves(series, "group size g", "μ", kind=kind, log=True, log_y=True)}
