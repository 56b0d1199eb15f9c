"""Slow, plain computations that the library's results are compared with, and small models for it."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense_net(features: int = 6, classes: int = 3, **options) -> keras.Model:
    """A small smooth network with reproducible weights."""
    keras.utils.set_random_seed(options.pop("seed", 7))
    return keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(5, "tanh", **options), keras.layers.Dense(classes)]
    )


def conv_net(classes: int = 3) -> keras.Model:
    """A small smooth convolutional network with reproducible weights."""
    keras.utils.set_random_seed(8)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
            keras.layers.GroupNormalization(2),
            keras.layers.Flatten(),
            keras.layers.Dense(classes),
        ]
    )


def blobs(n: int, shape: tuple[int, ...] = (6,), classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs and labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, classes, n)


def example_gradient(model: keras.Model, x, y, loss=LOSS) -> list[np.ndarray]:
    """The gradient of the mean loss of some examples, by a plain tape."""
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(loss.call(tf.convert_to_tensor(y), model(x, training=True)))
    gradient = tape.gradient(value, model.trainable_variables, unconnected_gradients="zero")
    return [np.asarray(tf.convert_to_tensor(g)) for g in gradient]


def clipped(gradient: list[np.ndarray], norm: float) -> list[np.ndarray]:
    """[x]_C of the whole list as one vector, in float64."""
    size = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient))
    return [g / max(1.0, size / norm) for g in gradient]


def clipped_sum(model: keras.Model, x, y, groups, norm: float, loss=LOSS) -> list[np.ndarray]:
    """Sum over groups (lists of example indices) of the clipped mean gradient, one group at a time."""
    total = [np.zeros(v.shape) for v in model.trainable_variables]
    for group in groups:
        part = clipped(example_gradient(model, x[group], y[group], loss), norm)
        total = [t + p for t, p in zip(total, part, strict=True)]
    return total


def flat(tensors) -> np.ndarray:
    """All numbers of a list of tensors as one vector."""
    return np.concatenate([np.asarray(t, np.float64).ravel() for t in tensors])
