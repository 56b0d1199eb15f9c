"""One clipping of each kind and variant, with the number of its blocks and a state, for tests that hold for all of them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfdpbc.clipping import (
    AutomaticClipping,
    FixedNorms,
    FullGradientClipping,
    GroupedClipping,
    LayerwiseClipping,
    PrivateNorms,
    PublicNorms,
    QuantileClipping,
    ReleasedNorms,
    ScaledClipping,
)


@keras.saving.register_keras_serializable("tfdpbc-tests")
def halving(step):
    return 0.8 / (1.0 + tf.cast(step, tf.float32))


SCHEDULE = keras.optimizers.schedules.PiecewiseConstantDecay([3.0], [1.5, 0.25])
PRIOR = FixedNorms(prior=(0.1, 1.0, 5.0))
# L is 1 for the first ones, 3 for the others.
CLIPPINGS = [
    FullGradientClipping(0.7),
    FullGradientClipping(2.0, decay=0.9),
    FullGradientClipping(1.0, 0.5, "round"),
    FullGradientClipping(halving, decay_every="round"),
    FullGradientClipping(SCHEDULE),
    AutomaticClipping(0.4),
    AutomaticClipping(2.0, stability=1e-12),
    QuantileClipping(0.3, count_noise=5.0),
    LayerwiseClipping(0.7, num_blocks=3),
    LayerwiseClipping(SCHEDULE, num_blocks=3, estimates=PRIOR, decay=0.9, floor=0.05),
    LayerwiseClipping(0.7, num_blocks=3, estimates=PublicNorms(prior="sqrt-dimension", contributions=7)),
    GroupedClipping(0.7, num_groups=2, estimates=PRIOR, num_blocks=3),
    GroupedClipping(0.7, groups=(0, 1, 0), estimates=ReleasedNorms(every=5), decay=0.9),
    GroupedClipping(0.7, num_groups=1, num_blocks=3),
    ScaledClipping(0.7, num_blocks=3, estimates=PRIOR),
    ScaledClipping(2.0, num_blocks=3, estimates=PrivateNorms(noise_multiplier=9.0)),
]
IDS = [f"{kind.config_name}{i}" for i, kind in enumerate(CLIPPINGS)]
DIMENSIONS = (2, 30, 400)


def given(kind, estimates=None) -> dict:
    """The keyword `state` of a clipping that adapts, nothing for the others."""
    if not kind.adaptive:
        return {}
    state = kind.initial_state(DIMENSIONS[: kind.num_blocks()])
    if estimates is not None and "estimates" in state:
        state = kind.with_estimates(state, tf.constant(estimates, tf.float32))
    return {"state": state}


def bounds_of(kind, round_index=0, **state) -> np.ndarray:
    return np.asarray(kind.bounds(round_index, 7, **state), np.float32)
