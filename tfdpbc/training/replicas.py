"""Training on several devices with `tf.distribute`: what is supported, checked before anything is released."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.errors import IncompatibleModel


def check(
    strategy: Any, model: Any, jit_compile: bool = False, state_variables: Any = (), optimizer: Any = None
) -> None:
    """Refuses what would not be one noisy update, the same on every replica.

    Raises:
      ValueError: a strategy of several processes or none of whose replicas are known to hold the same weights, XLA, or an
      optimizer that Keras itself cannot run there.
      IncompatibleModel: weights made outside the strategy's scope, or data-written state.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    # Several processes would each draw batches and noise of their own.
    if type(strategy) is not tf.distribute.MirroredStrategy:
        _validate.fail("strategy", "a tf.distribute.MirroredStrategy (one process)", type(strategy).__name__)
    if jit_compile:
        _validate.fail("jit_compile", "False with several replicas: their sums are added up outside XLA", jit_compile)
    for name in ("gradient_accumulation_steps", "use_ema"):
        if getattr(optimizer, name, None):
            expected = f"without {name} on several replicas (Keras supports it on one only)"
            _validate.fail("optimizer", expected, type(optimizer).__name__)
    for v in model.variables:
        if not strategy.extended.variable_created_in_scope(v.value):
            raise IncompatibleModel(
                f"model must be made in the scope of the same strategy as the PrivateModel; got variable {v.path!r} made "
                "outside of it"
            )
    if state_variables:
        raise IncompatibleModel(
            f"several replicas cannot write the state of {state_variables[0].path!r}; got statistics='private' or "
            "'unprotected'. Use 'public' or 'batch', or one device"
        )
