"""Checkpoints: everything a stopped run needs to go on, in one file that is written whole or not at all.

A checkpoint holds the weights, the states of the optimizer and of the clipping, and the ledger of released rounds. It
holds no randomness: a resumed run draws fresh noise, unless the user gave a seed, which then reproduces the draws of each
round from its number.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc.errors import RunFolderError
from tfdpbc.ledger import Ledger

FORMAT = 2


def save(model: Any, path: Any) -> None:
    """Writes a checkpoint of a compiled, built `PrivateModel`.

    Args:
      path: the file to write or replace.
    """
    path = Path(path)
    arrays = {name: np.asarray(variable) for name, variable in _variables(model)}
    meta = {"format": FORMAT, "ledger": model.ledger.to_config(), "plan": model.plan.to_config()}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(model: Any, path: Any) -> Ledger:
    """Restores what `save` wrote into a compiled, built `PrivateModel`; nothing changes if the file does not fit.

    Returns:
      The ledger at the time the checkpoint was written.

    Raises:
      RunFolderError: the file is missing, damaged, of another plan or of another model.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        meta = json.loads(bytes(stored.pop("meta")).decode())
        ledger, plan = Ledger.from_config(meta["ledger"]), meta["plan"]
    except FileNotFoundError as error:
        raise RunFolderError(f"no checkpoint at {path}") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise RunFolderError(f"the checkpoint {path} is damaged: {error}") from error
    if plan != json.loads(json.dumps(model.plan.to_config())):
        raise RunFolderError(f"the checkpoint {path} belongs to another plan: {plan}")
    variables = dict(_variables(model))
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if shapes != {name: value.shape for name, value in stored.items()}:
        raise RunFolderError(f"the checkpoint {path} belongs to a model or an optimizer of another shape")
    for name, variable in variables.items():
        variable.assign(stored[name])
    return ledger


def _variables(model: Any) -> list[tuple[str, Any]]:
    """Names that do not depend on Keras's automatic layer names, which differ between processes."""
    weights = [(f"model{i}", variable) for i, variable in enumerate(model.model.variables)]
    weights.append(("plan_mark", model._plan_mark))  # says if the weights hold raw statistics
    if model._statistics_round is not None:
        weights.append(("statistics_round", model._statistics_round))
    weights += model.averages.state() if model.averages else []
    weights += [(f"clipping_{name}", variable) for name, variable in sorted(model._clip_state.items())]
    return weights + [(f"optimizer{i}", variable) for i, variable in enumerate(model.optimizer.variables)]
