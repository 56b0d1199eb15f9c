"""JAX-Privacy: `clipped_grad` and its Gaussian noise, one jitted step; models in Flax.

"vmap" maps over the whole batch at once, "micro" over micro-batches of 8 in turn: which is faster depends on the model.

XLA compiles the whole step; state is donated, so that parameters are updated in place.
"""

from __future__ import annotations

import math
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import optax
from flax import linen as nn
from jax_privacy import noise_addition
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
    orders,
    pool,
    serve,
)


def convolution(x: Any, filters: int, size: int, normalized: bool, stride: int = 1) -> Any:
    x = nn.Conv(filters, (size, size), (stride, stride), use_bias=not normalized)(x)
    return nn.GroupNorm(math.gcd(32, filters))(x) if normalized else x


class Net(nn.Module):
    """The model of this name: x is images [b, height, width, channels] or a pair of tokens and positions."""

    name_: str
    classes: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(self.classes)(getattr(self, self.name_)(x))

    def mlp(self, x: Any) -> Any:
        x = x.reshape(x.shape[0], -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(512)(x))
        return x

    def tutorial_cnn(self, x: Any) -> Any:
        x = nn.max_pool(nn.tanh(nn.Conv(16, (8, 8), (2, 2))(x)), (2, 2), (1, 1))
        x = nn.max_pool(nn.tanh(nn.Conv(32, (4, 4), (2, 2), padding="VALID")(x)), (2, 2), (1, 1))
        return nn.tanh(nn.Dense(32)(x.reshape(x.shape[0], -1)))

    def convnet(self, x: Any, normalized: bool = False) -> Any:
        for block, filters in enumerate(CONVNET, start=1):
            x = nn.relu(convolution(x, filters, 3, normalized))
            x = nn.avg_pool(x, (2, 2), (2, 2)) if block < len(CONVNET) else x.mean((1, 2))
        return x

    def convnet_groupnorm(self, x: Any) -> Any:
        return self.convnet(x, normalized=True)

    def resnet18_groupnorm(self, x: Any) -> Any:
        x = nn.relu(convolution(x, RESNET[0], 3, True))
        for stage, filters in enumerate(RESNET):
            for number in range(2):
                stride = 2 if stage and not number else 1
                shortcut = x
                x = nn.relu(convolution(x, filters, 3, True, stride))
                x = convolution(x, filters, 3, True)
                if stride > 1 or shortcut.shape[-1] != filters:
                    shortcut = convolution(shortcut, filters, 1, True, stride)
                x = nn.relu(x + shortcut)
        return x.mean((1, 2))

    def transformer(self, x: Any) -> Any:
        tokens, positions = x
        x = nn.Embed(VOCABULARY, WIDTH)(tokens) + nn.Embed(LENGTH, WIDTH)(positions)
        for _ in range(BLOCKS):
            x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(HEADS)(x))
            x = nn.LayerNorm()(x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(x), approximate=False)))
        return x.mean(1)


def make(name: str, variant: str, batches: int) -> Ready:
    if not hasattr(Net, name):
        raise Unsupported("no such model in this worker")
    x, y = jax.tree.map(jnp.asarray, pool(name, batches))
    batch = SHAPES[name].batch
    net = Net(name, SHAPES[name].classes)
    parameters = jax.jit(net.init)(jax.random.key(0), jax.tree.map(lambda t: t[:1], x))
    optimizer = optax.sgd(RATE)
    privatizer = None

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(parameters, x), y).mean()

    if variant == "plain":
        gradient = jax.value_and_grad(loss)
    else:
        clipped = jax_privacy.clipped_grad(
            loss,
            l2_clip_norm=CLIP,
            normalize_by=batch,
            batch_argnums=(1, 2),
            return_values=True,
            microbatch_size=8 if variant == "micro" else None,
        )
        privatizer = noise_addition.gaussian_privatizer(stddev=NOISE * clipped.sensitivity(), prng_key=1)

        def gradient(parameters: Any, x: Any, y: Any) -> Any:
            value, aux = clipped(parameters, x, y)
            return aux.values.mean(), value

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, x: Any, y: Any, order: Any) -> Any:
        parameters, slots, noise, total = state
        value, update = gradient(parameters, jax.tree.map(lambda t: t[order], x), y[order])
        if privatizer is not None:
            update, noise = privatizer.update(update, noise)
        update, slots = optimizer.update(update, slots, parameters)
        return optax.apply_updates(parameters, update), slots, noise, total + value

    noise = None if privatizer is None else privatizer.init(parameters)
    count = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    state = jax.tree.map(jnp.array, (parameters, optimizer.init(parameters), noise, jnp.zeros(())))

    def run(steps: int) -> int:
        nonlocal state
        for order in orders(name, len(y), steps):
            state = step(state, x, y, order)
        jax.block_until_ready(state)
        return steps

    return Ready(run, count)


if __name__ == "__main__":
    packages = {"JAX-Privacy": "jax-privacy", "JAX": "jax", "Flax": "flax"}
    serve({title: version(package) for title, package in packages.items()}, make)
