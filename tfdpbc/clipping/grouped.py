"""Clipping by groups of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping.base import Released, of_finite, optional_integer
from tfdpbc.clipping.blockwise import BlockwiseClipping
from tfdpbc.clipping.clusters import by_order_of_magnitude


@keras.saving.register_keras_serializable("tfdpbc")
class GroupedClipping(BlockwiseClipping):
    r"""Clips groups of layers of similar expected norm, each group as one vector (paper B).

    As `LayerwiseClipping` with a block per group: :math:`e_G = (\sum_{j \in G} e_j^2)^{1/2}`, C_G = C e_G / max e_G. A hit round
    composes as many Gaussian mechanisms as there are groups: the guarantee is that of σ/√groups. Paper B expects about 4
    for the 62 layers of its ResNet-18.

    Args:
      master_norm: C > 0, the clip norm of the group with the largest e_G; or a schedule (see `NormSchedule`).
      num_groups: so many groups, found by exact k-means on log e_j and found anew whenever e_j is; which layer is in which
        group is then a function of the estimates and as public as they are.
      groups: or the groups themselves: for each layer that owns trainable variables, in the model's order, the number of its
        group (0, 1, ...).
      estimates, decay, decay_every, floor: as for `LayerwiseClipping`.
      num_blocks: how many such layers there are, checked against the model where given; no guarantee depends on it.

    Formal guarantee: group G of every clipped contribution has norm at most C_G.
    """

    config_name = "grouped"
    norm_name = "master_norm"
    public = ("master_norm", "num_groups", "groups", "estimates", "decay", "decay_every", "floor", "num_blocks")

    def __init__(
        self,
        master_norm: Any,
        num_groups: int | None = None,
        groups: Sequence[int] | None = None,
        estimates: Any = "released",
        decay: float = 1.0,
        decay_every: str = "epoch",
        floor: float = 1e-3,
        num_blocks: int | None = None,
        **kwargs: Any,
    ):
        if groups is not None:
            _validate.instance("groups", groups, (list, tuple, np.ndarray), "a group number for each layer")
            groups = tuple(_validate.integer("groups", g, at_least=0) for g in groups)
            if not groups or set(groups) != set(range(max(groups) + 1)):
                _validate.fail("groups", "numbers 0, 1, ... of which none is left out", groups)
            num_blocks = len(groups) if num_blocks is None else num_blocks
            if num_blocks != len(groups):
                _validate.fail("num_blocks", f"the {len(groups)} layers that groups are given for", num_blocks)
            if num_groups not in (None, max(groups) + 1):
                _validate.fail("num_groups", f"left out, or the {max(groups) + 1} groups given", num_groups)
        elif num_groups is None:
            _validate.fail("num_groups", "an integer >= 1 (or groups must be given)", None)
        super().__init__(master_norm, num_blocks, estimates, decay, decay_every, floor, **kwargs)
        self._num_groups, self._groups = optional_integer("num_groups", num_groups), groups
        if self._num_blocks is not None and self.composed_blocks() > self._num_blocks:
            _validate.fail("num_groups", f"at most the {self._num_blocks} layers", self._num_groups)

    master_norm = property(lambda self: self.norm, doc="C, or its schedule.")
    num_groups = property(lambda self: self.composed_blocks(), doc="How many groups there are.")
    groups = property(lambda self: self._groups, doc="The group of each layer where it is fixed, else None.")

    def composed_blocks(self) -> int:
        return self._num_groups if self._groups is None else max(self._groups) + 1

    def initial_state(self, dimensions: Any) -> dict[str, Any]:
        return self._grouped(super().initial_state(dimensions))

    def with_estimates(self, state: dict[str, Any], found: Any) -> dict[str, Any]:
        return self._grouped(super().with_estimates(state, found))

    def update(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        new = super().update(state, released)
        if self._groups is not None or not self.estimates.accumulates:
            return new
        due = self.estimates.due(released.round_index, released.rounds_per_epoch)
        return {**new, "groups": tf.cond(due, lambda: self._grouped(new)["groups"], lambda: state["groups"])}

    def _grouped(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._groups is not None:
            return state
        found = by_order_of_magnitude(tf.convert_to_tensor(state["estimates"]), self._num_groups)
        return {**state, "groups": found}

    def _members(self, state: dict[str, Any]) -> Any:
        """``[L, groups]``: 1 where the layer is in the group."""
        groups = state["groups"] if self._groups is None else tf.constant(self._groups, tf.int32)
        return tf.one_hot(groups, self.composed_blocks())

    def _sizes(self, state: dict[str, Any]) -> Any:
        """e_G of each layer's group."""
        return self._of_groups(tf.convert_to_tensor(state["estimates"]), self._members(state))

    def _of_groups(self, norms: Any, members: Any) -> Any:
        """``[..., L]``: the norm of the whole group that the layer is in."""
        parts = norms[..., None] * members  # [..., L, groups]
        largest = tf.reduce_max(parts, axis=-2, keepdims=True)
        # The largest of each group is taken out first, so that no square overflows and none that matters vanishes.
        unit = tf.math.divide_no_nan(parts, largest)
        whole = largest[..., 0, :] * tf.sqrt(tf.reduce_sum(tf.square(unit), axis=-2))
        return tf.linalg.matvec(members, whole)

    def call(self, norms: Any, bounds: Any, state: Any = None) -> Any:
        """Weights ``[m, L]``, the same for all layers of a group: 1 / max(1, ‖group‖ / bound)."""
        usable = of_finite(norms, norms)  # an infinite norm must not turn its neighbours' weights into NaN
        members = self._members(state)
        whole = self._of_groups(usable, members)
        return of_finite(norms, 1.0 / tf.maximum(1.0, whole / bounds))
