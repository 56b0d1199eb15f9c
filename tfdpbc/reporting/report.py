"""`report.html`: a run folder for reading, made from its files alone, in one file that needs no network."""

from __future__ import annotations

import html
import importlib.resources
import string
from collections.abc import Mapping
from typing import Any

from tfdpbc import guarantee as guarantees
from tfdpbc.errors import RunFolderError
from tfdpbc.reporting import plots
from tfdpbc.reporting.run_folder import RunFolder, to_json, write_text

NOT_COVERED = (
    "Training loss and training metrics are computed on the private data without noise: the guarantee does not cover "
    "them, nor what was chosen by looking at them. Do not publish this page where the data must stay private."
)


def write_report(folder: RunFolder) -> None:
    """Writes `report.html` from `config.json`, `history.csv`, `guarantee.json` and `trade_off.csv`.

    Raises:
      RunFolderError: one of these files is missing or damaged.
    """
    guarantee, history = folder.read_guarantee(), folder.read_history()
    try:
        sentence = guarantees.sentence(guarantee)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{folder.path / 'guarantee.json'} is damaged: {error!r} in its contents") from error
    template = importlib.resources.files("tfdpbc.reporting").joinpath("report.html").read_text("utf-8")
    page = string.Template(template).substitute(
        title=html.escape(f"Training run {folder.path.resolve().name}"),
        sentence=html.escape(sentence),
        warnings="\n".join(f'<p class="caution">{html.escape(text)}</p>' for text in guarantee.get("warnings", ())),
        guarantee=_table({key: value for key, value in guarantee.items() if key not in ("plan", "warnings")}),
        plots="\n".join(_plots(folder, guarantee, history)),
        last=_table(history[-1]) if history else "<p>No epoch has ended.</p>",
        not_covered=html.escape(NOT_COVERED),
        config=html.escape(to_json(folder.config)),
    )
    write_text(folder.report, page)


def _plots(folder: RunFolder, guarantee: Mapping[str, Any], history: list[dict[str, float]]) -> list[str]:
    drawn = [
        plots.metric(history, "accuracy"),
        plots.metric(history, "loss"),
        plots.epsilon(history, guarantee["delta"]),
        plots.trade_off(folder.read_trade_off()),
    ]
    return [plot for plot in drawn if plot]


def _table(content: Mapping[str, Any]) -> str:
    rows = (f"<tr><th>{html.escape(str(key))}</th><td>{_cell(value)}</td></tr>" for key, value in content.items())
    return "<table>" + "".join(rows) + "</table>"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, list):
        return "<br>".join(map(_cell, value))
    return html.escape("none" if value is None else str(value))
