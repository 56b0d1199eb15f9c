"""TF-Privacy on Keras 2.

"optimizer" is its vectorized DP-SGD optimizer (the Jacobian of the losses). "model" is its DP model: fast clipping by norms
where it has a rule for every layer with weights (Dense, Embedding, LayerNormalization, EinsumDense, MultiHeadAttention), else
`tf.vectorized_map` over the examples. XLA is off on both sides: on a CPU it is slower here.
"""

from __future__ import annotations

import math
import os
from importlib.metadata import version
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from protocol import (
    BLOCKS,
    CLIP,
    CONVNET,
    HEADS,
    HIDDEN,
    LENGTH,
    NOISE,
    RATE,
    RESNET,
    SHAPES,
    VOCABULARY,
    WIDTH,
    Ready,
    Unsupported,
    pool,
    serve,
)
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (
    einsum_dense,
    layer_normalization,
    multi_head_attention,
)
from tensorflow_privacy.privacy.keras_models import dp_keras_model
from tensorflow_privacy.privacy.optimizers.dp_optimizer_keras_vectorized import VectorizedDPKerasSGDOptimizer

layers = tf.keras.layers


def convolution(x: Any, filters: int, size: int, normalized: bool, stride: int = 1) -> Any:
    x = layers.Conv2D(filters, size, stride, padding="same", use_bias=not normalized)(x)
    return layers.GroupNormalization(math.gcd(32, filters))(x) if normalized else x


def features(name: str) -> tuple[Any, Any]:
    """(inputs, output before the logits) of a functional model."""
    if name == "transformer":
        inputs = tokens, positions = layers.Input([LENGTH], dtype="int32"), layers.Input([LENGTH], dtype="int32")
        x = layers.Embedding(VOCABULARY, WIDTH)(tokens) + layers.Embedding(LENGTH, WIDTH)(positions)
        for _ in range(BLOCKS):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(HIDDEN, activation="gelu")(x)))
        return inputs, layers.GlobalAveragePooling1D()(x)
    inputs = x = layers.Input(SHAPES[name].example)
    if name == "mlp":
        x = layers.Flatten()(x)
        for _ in range(2):
            x = layers.Dense(512, activation="relu")(x)
    elif name == "tutorial_cnn":
        x = layers.MaxPooling2D(2, 1)(layers.Conv2D(16, 8, 2, padding="same", activation="tanh")(x))
        x = layers.MaxPooling2D(2, 1)(layers.Conv2D(32, 4, 2, activation="tanh")(x))
        x = layers.Dense(32, activation="tanh")(layers.Flatten()(x))
    elif name in ("convnet", "convnet_groupnorm"):
        for block, filters in enumerate(CONVNET, start=1):
            x = layers.ReLU()(convolution(x, filters, 3, name == "convnet_groupnorm"))
            x = (layers.AveragePooling2D(2) if block < len(CONVNET) else layers.GlobalAveragePooling2D())(x)
    elif name == "resnet18_groupnorm":
        x = layers.ReLU()(convolution(x, RESNET[0], 3, True))
        for stage, filters in enumerate(RESNET):
            for number in range(2):
                stride = 2 if stage and not number else 1
                shortcut = x
                x = convolution(layers.ReLU()(convolution(x, filters, 3, True, stride)), filters, 3, True)
                if stride > 1 or shortcut.shape[-1] != filters:
                    shortcut = convolution(shortcut, filters, 1, True, stride)
                x = layers.ReLU()(x + shortcut)
        x = layers.GlobalAveragePooling2D()(x)
    else:
        raise Unsupported("no such model in this worker")
    return inputs, x


def registry() -> layer_registry.LayerRegistry:
    """Every rule for core layers that the package has."""
    rules = layer_registry.make_default_layer_registry()
    rules.insert(layers.LayerNormalization, layer_normalization.layer_normalization_computation)
    rules.insert(layers.EinsumDense, einsum_dense.einsum_layer_computation)
    rules.insert(layers.MultiHeadAttention, multi_head_attention.multi_head_attention_layer_computation)
    return rules


def make(name: str, variant: str, batches: int) -> Ready:
    batch = SHAPES[name].batch
    x, y = tf.nest.map_structure(lambda t: tf.Variable(t, trainable=False), pool(name, batches))
    inputs, output = features(name)
    outputs = layers.Dense(SHAPES[name].classes)(output)
    crossentropy = tf.keras.losses.SparseCategoricalCrossentropy
    sgd = tf.keras.optimizers.SGD(RATE, jit_compile=False)
    if variant == "model":
        model = dp_keras_model.DPModel(
            l2_norm_clip=CLIP,
            noise_multiplier=NOISE,
            use_xla=False,
            layer_registry=registry(),
            inputs=inputs,
            outputs=outputs,
        )
        model.compile(sgd, crossentropy(from_logits=True))

        def step(xs: Any, ys: Any) -> Any:
            return model.train_step((xs, ys))["loss"]

    else:
        model = tf.keras.Model(inputs, outputs)
        if variant == "plain":
            loss, optimizer = crossentropy(from_logits=True), sgd
        else:
            loss = crossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
            optimizer = VectorizedDPKerasSGDOptimizer(CLIP, NOISE, batch, learning_rate=RATE)

        def step(xs: Any, ys: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(ys, model(xs, training=True))
            optimizer.minimize(value, model.trainable_variables, tape=tape)
            return tf.reduce_mean(value)

    @tf.function
    def loop(steps: Any) -> Any:
        order = tf.reshape(tf.random.shuffle(tf.range(batch * batches)), [batches, batch])
        total = tf.constant(0.0)
        for number in tf.range(steps):
            indices = order[number]
            xs, ys = tf.nest.map_structure(lambda t: tf.gather(t, indices), (x, y))  # noqa: B023
            total += step(xs, ys)
        return total

    def run(steps: int) -> int:
        loop(tf.constant(steps)).numpy()
        return steps

    parameters = sum(math.prod(v.shape) for v in model.trainable_variables)
    if variant != "optimizer":
        sgd.build(model.trainable_variables)
    return Ready(run, parameters)


if __name__ == "__main__":
    packages = {"TF-Privacy": "tensorflow-privacy", "TensorFlow": "tensorflow", "Keras": "keras"}
    serve({title: version(package) for title, package in packages.items()}, make)
