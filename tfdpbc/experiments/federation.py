"""Runs `many.EXPERIMENT`: simulated networks of clients, what is finished already left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdpbc import data, guarantee, models
from tfdpbc.clipping import FullGradientClipping
from tfdpbc.errors import DataError
from tfdpbc.experiments.many import ManySetting
from tfdpbc.experiments.results import Results
from tfdpbc.experiments.runner import Scale
from tfdpbc.federated.coordinator import Coordinator
from tfdpbc.federated.local import Trainer, released_variables
from tfdpbc.federated.simulation import Participant, Simulation
from tfdpbc.federated.splits import split
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import PrivacyPlan
from tfdpbc.random import Streams
from tfdpbc.sampling import Poisson

POINTS = 20
"""How often a network is evaluated."""
LARGEST_STEP = 1e6


def run(
    settings: Sequence[ManySetting],
    scale: Scale,
    results: Results,
    data_dir: Any = None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Simulates what is missing in `results`.

    Raises:
      TfdpbcError: the data are missing, or too few for so many clients.
    """
    loaded: dict[str, Any] = {}
    for setting in settings:
        for seed in range(scale.seeds):
            wanted = scale.run(setting, seed)
            if results.find(wanted) is not None:
                continue
            if setting.dataset not in loaded:
                parts = {part: data.load(setting.dataset, data_dir=data_dir, split=part) for part in ("train", "test")}
                loaded = {setting.dataset: parts}
            start = time.monotonic()
            found = simulate(setting, loaded[setting.dataset], wanted, tell)
            results.add(wanted, setting=setting.name, seconds=time.monotonic() - start, **found)
            keras.utils.clear_session(free_memory=True)


def make_plan(setting: ManySetting, examples: int, epochs: int) -> PrivacyPlan:
    """The plan of a client with so many examples, calibrated to the setting's promise."""
    sampling = Poisson.individual(examples, max(1, examples // setting.rounds_per_epoch))
    plan = PrivacyPlan(sampling, FullGradientClipping(setting.norm), 1.0, epochs)
    return plan.calibrate(epsilon=setting.epsilon, delta=setting.delta)


def simulate(
    setting: ManySetting, parts: Mapping[str, Any], wanted: Mapping[str, Any], tell: Callable[[str], None]
) -> dict[str, Any]:
    """One network, to the end of every client's plan.

    Returns:
      `history` (rows of `epoch` = virtual time, `updates`, `accuracy`), `rate` (rounds of the slowest even client by unit of
      time), `last` (when the last client ended), `epsilon` (of a client: all have equal
      plans), `rounds_spent` (of all clients), `versions`.
    """
    seed, train, test = wanted["seed"], parts["train"], parts["test"]
    limit = len(train.y) if wanted["examples"] is None else min(wanted["examples"], len(train.y))
    x, y = train.scaled()[:limit], train.y[:limit]
    owned = split(setting.split, y, setting.clients, seed)
    if len(owned[0]) < setting.rounds_per_epoch:
        raise DataError(f"examples must leave each of {setting.clients} clients at least {setting.rounds_per_epoch}")
    plan = make_plan(setting, len(owned[0]), wanted["epochs"])
    weights = int(Streams(seed).generator("init").integers(2**31))

    def build() -> keras.Model:
        return models.build(setting.model, x.shape[1:], train.num_classes, seed=weights)

    members = []
    for k, mine in enumerate(owned):
        own = int(Streams(seed).generator("client", k).integers(2**62))
        model = _compiled(PrivateModel(build(), plan, seed=own), setting)
        trainer = Trainer(model, x[mine], y[mine], client=f"client-{k}", seeded=True)
        members.append(Participant(trainer, setting.slow if k == 0 else 1.0, setting.delay))
    judge = _compiled(build(), setting, metrics=["accuracy"])
    server = Coordinator(
        [v.numpy() for v in released_variables(members[0].trainer.model)],
        max_norm=LARGEST_STEP,
        share=1.0 if setting.synchronous else setting.share,
        client_weights={one.trainer.client: 1 / setting.clients for one in members},
    )
    history: list[dict[str, float]] = []
    test_x = test.scaled()

    def observe(now: float, updates: int) -> None:
        for variable, value in zip(judge.trainable_variables, server.weights, strict=True):
            variable.assign(value)
        accuracy = 100 * judge.evaluate(test_x, test.y, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
        history.append({"epoch": now, "updates": updates, "accuracy": float(accuracy)})
        tell(f"{setting.name} seed {seed}: time {now:.1f}, {updates} updates, test accuracy {accuracy:.2f} %")

    every = max(1, plan.rounds * setting.clients // POINTS)
    simulation = Simulation(server, members, setting.synchronous, seed, observe, every)
    simulation.run()
    even = [ends for name, ends in simulation.rounds.items() if name != "client-0"]
    return {
        "history": history,
        "rate": min(len(ends) / ends[-1] for ends in even),
        "last": simulation.time,
        "broadcasts": server.version,
        "counts": dict(server.counts),
        "noise_multiplier": plan.noise_multiplier,
        "examples_per_client": len(owned[0]),
        "epsilon": members[0].trainer.ledger.epsilon(setting.delta),
        "rounds_spent": sorted({one.trainer.round for one in members}),
        "versions": guarantee.versions(),
    }


def _compiled(model: keras.Model, setting: ManySetting, **options: Any) -> Any:
    model.compile(
        optimizer=keras.optimizers.SGD(setting.learning_rate, momentum=setting.momentum),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    return model


def summarise(settings: Sequence[ManySetting], scale: Scale, results: Results) -> list[dict[str, Any]]:
    """A JSON-able row for each setting; where it was simulated with means over the seeds, and curves of the first one."""
    rows = []
    for setting in settings:
        found = [r for s in range(scale.seeds) if (r := results.find(scale.run(setting, s))) is not None]
        row: dict[str, Any] = {"setting": setting.name, "config": setting.config()}
        if found:
            accuracy = np.array([one["history"][-1]["accuracy"] for one in found])
            row |= {
                "seeds": len(found),
                "accuracy": {
                    "mean": float(accuracy.mean()),
                    "std": float(accuracy.std(ddof=1)) if len(found) > 1 else None,
                },
                "updates": found[0]["history"][-1]["updates"],
                "by_time": [(point["epoch"], point["accuracy"]) for point in found[0]["history"]],
                "by_update": [(point["updates"], point["accuracy"]) for point in found[0]["history"]],
            }
            names = ("rate", "last", "broadcasts", "noise_multiplier", "examples_per_client", "epsilon", "seconds")
            row |= {name: found[0][name] for name in names}
        rows.append(row)
    return rows


def accuracy_at(row: Mapping[str, Any], now: float) -> float | None:
    """The accuracy at the last evaluation up to a time."""
    reached = [accuracy for at, accuracy in row["by_time"] if at <= now]
    return reached[-1] if reached else None


def text(experiment: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    """The table."""
    done = [row for row in rows if "accuracy" in row]
    titles = ["setting", "accuracy at the end", "ends at", "rate of the others", "updates", "broadcasts", "N", "σ", "ε"]
    early = min((row["last"] for row in done), default=0.0)
    titles.insert(2, f"at {early:.0f}")
    cells = [titles]
    for row in done:
        mean, std, then = row["accuracy"]["mean"], row["accuracy"]["std"], accuracy_at(row, early)
        cells.append(
            [
                row["setting"],
                f"{mean:.2f} %" + (f" ± {std:.2f} ({row['seeds']} seeds)" if std is not None else ""),
                "–" if then is None else f"{then:.2f} %",
                f"{row['last']:.1f}",
                f"{row['rate']:.3f}",
                str(row["updates"]),
                str(row["broadcasts"]),
                str(row["examples_per_client"]),
                f"{row['noise_multiplier']:.3f}",
                f"{row['epsilon']:.3f}",
            ]
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(titles))]
    lines = [
        f"{experiment.name} (paper {experiment.paper}, {experiment.where}): {experiment.title}",
        f"Claim: {experiment.claim}",
        *("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells),
        "rate of the others: rounds by unit of time of the slowest client but the first. N: examples of a client. ε: of a "
        "client with all its rounds, from its ledger (Poisson, add/remove).",
        *experiment.notes,
    ]
    return "\n".join(lines)


def pictures(rows: Sequence[Mapping[str, Any]], kind: str = "svg") -> dict[str, bytes]:
    """Accuracy against virtual time and against updates, one pair for each number of clients."""
    from tfdpbc.reporting import plots

    found = {}
    for clients in sorted({row["config"]["clients"] for row in rows if "accuracy" in row}):
        chosen = [row for row in rows if "accuracy" in row and row["config"]["clients"] == clients]
        for key, label in (("by_time", "virtual time (rounds of an even client)"), ("by_update", "updates")):
            series = {row["setting"]: [(at, value, None) for at, value in row[key]] for row in chosen}
            name = f"{clients}-clients-{key.replace('_', '-')}.{kind}"
            found[name] = plots.curves(series, label, "test accuracy (%)", kind=kind)
    return found
