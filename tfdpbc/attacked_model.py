"""A PrivateModel under attack, for experiments with robust aggregations; nothing of the product imports it but the CLI."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc import _validate
from tfdpbc.data.corruption import GRADIENT_ATTACKS
from tfdpbc.gradients.corrupted import CorruptedEngine
from tfdpbc.gradients.engine import Engine
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import Spent

_COLLUDING = (
    "an experiment: corrupted contributions were made of the honest ones of their pass, so that one example moves many"
)


class AttackedModel(PrivateModel):
    """A `PrivateModel` in which examples of negative sample weight contribute adversarial gradients.

    Args:
      attack: a name of `data.corruption.GRADIENT_ATTACKS`.
      attack_options: arguments of `gradients.corrupted.CorruptedEngine`.
      The others are those of `PrivateModel`.

    Formal guarantee: none where the attack looks at honest contributions; else that of the plan, for the marked data set.
    """

    def __init__(self, *args: Any, attack: str, attack_options: dict[str, Any] | None = None, **kwargs: Any):
        self._attack = _validate.choice("attack", attack, GRADIENT_ATTACKS), attack_options or {}
        super().__init__(*args, **kwargs)

    def _build_engine(self) -> tuple[Engine, str]:
        engine, reason = super()._build_engine()
        kind, options = self._attack
        return CorruptedEngine(engine, kind, **options), f"{reason}; attacked: {kind}"

    @property
    def spent(self) -> Spent:
        found = super().spent
        if self._attack[0] == "gradient-random" or found.void:
            return found
        return dataclasses.replace(found, void=_COLLUDING)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError("an AttackedModel is an experiment and cannot be serialised; save its model")
