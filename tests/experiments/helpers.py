"""A small data set in the place of the papers', and an experiment small enough for it."""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest

from tfdpbc import data, models
from tfdpbc.errors import DataError
from tfdpbc.experiments import registry, statement, training
from tfdpbc.experiments.setting import SIZES, Experiment, Setting, Sweep, names, swept

SIZE = {"train": 200, "test": 60}
BASE = Setting(name="", dataset="stripes", model="tiny", batch_size=20, noise_multiplier=2.5, norm=0.2)
SIGMAS = swept(BASE, "noise_multiplier", "sigma", (0.5, 2.5), claimed={2.5: (50.38,)}, claimed_mu={2.5: 0.52})
SMALL = Experiment(
    name="b-small",
    paper="B",
    title="small",
    where="Section 0",
    claim="half",
    settings=(*SIGMAS, dataclasses.replace(BASE, name="no-dp", clip=None, noise_multiplier=0.0)),
    sweeps=(Sweep("noise_multiplier", "σ", names(SIGMAS)),),
    notes=("a note",),
)


def stripes(name, data_dir=None, split="train", limit=None):
    """8 x 8 images of which the brighter half tells the class."""
    if name != "stripes":
        raise DataError(f"data set {name!r} is unknown")
    rng = np.random.default_rng(len(split))
    y = rng.integers(2, size=SIZE[split])
    x = rng.integers(0, 100, size=(SIZE[split], 8, 8, 1))
    x[np.arange(len(y)), :4] += 150 * y[:, None, None, None]
    return data.Dataset(x[:limit].astype(np.uint8), y[:limit], 2, "stripes")


def tiny(name, input_shape, num_classes, normalization, standardize, seed=None):
    """Two layers, or three with batch normalisation: traced fast."""
    assert name == "tiny" and standardize == data.GENERIC
    x = inputs = keras.Input(input_shape)
    x = keras.layers.AveragePooling2D(2)(keras.layers.Rescaling(2.0, -1.0)(x))
    x = keras.layers.Conv2D(2, 3, kernel_initializer=keras.initializers.GlorotUniform(seed))(x)
    if normalization == "batch":
        x = keras.layers.BatchNormalization(momentum=0.5)(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, kernel_initializer="zeros")(x))


@contextlib.contextmanager
def small():
    """Within it the experiment `b-small` is known, and its data and model take the place of the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", stripes)
        patch.setattr(models, "build", tiny)
        patch.setattr(training, "ROUNDS_PER_CALL", 1)  # half as much to trace
        patch.setitem(statement.SHAPES, "stripes", (8, 8, 1))
        patch.setitem(SIZES, "stripes", SIZE["train"])
        patch.setitem(registry._EXPERIMENTS, SMALL.name, SMALL)
        yield SMALL
