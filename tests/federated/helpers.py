"""A client small enough that a test can see through it."""

import keras
import numpy as np

import tfdpbc as dp
from tfdpbc.federated.local import Trainer
from tfdpbc.federated.messages import GlobalModel

N, DIM = 48, 6


def examples(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(np.int32)


def plan(sampling=None, sigma=1.0, epochs=2, clipping=None, **options):
    sampling = sampling or dp.Subsampling.individual(N, 12)
    return dp.PrivacyPlan(sampling, clipping or dp.FullGradientClipping(1.0), sigma, epochs, **options)


def private(of=None, seed=None, optimizer=None, physical=None, init=0, net=None, **options):
    keras.utils.set_random_seed(init)
    net = net or keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)])
    model = dp.PrivateModel(net, of or plan(), seed=seed, physical_batch_size=physical, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.5), loss=loss)
    return model


def trainer(model=None, data=None, client="a", **options):
    """What is known to a test, seeds and plans without noise, is allowed here."""
    model = model or private()
    known = model.streams.seed is not None or model.plan.noise_multiplier == 0
    return Trainer(model, *(data or examples()), client=client, seeded=known, **options)


def global_model(like, version=0, fill=None):
    values = [v.numpy() if fill is None else np.full(v.shape, fill, np.float32) for v in like.variables]
    return GlobalModel(version, tuple(np.array(v, np.float32) for v in values))
