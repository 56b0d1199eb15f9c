"""What kills the process inside tf.vectorized_map is never run there: each case in a process of its own."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import keras, numpy as np
import tfdpbc as dp
layers = keras.layers
inputs = keras.Input((4, 6))
{body}
model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(outputs)))
plan = dp.PrivacyPlan(dp.Shuffling(16, 4, 1), dp.FullGradientClipping(1.0), 1.0, 1)
private = dp.PrivateModel(model, plan, engine="vectorized", physical_batch_size=4)
private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rng = np.random.default_rng(0)
private.fit(rng.normal(size=(16, 4, 6)).astype("float32"), rng.integers(0, 3, 16), verbose=0)
print(private.engine_reason)
"""
BODIES = {
    "attention": "outputs = layers.MultiHeadAttention(2, 3, name='culprit')(inputs, inputs)",
    "einsum": "outputs = layers.EinsumDense('abc,cd->abd', (4, 5), name='culprit')(inputs)",
    "nested": (
        "inner = keras.Sequential([keras.Input((4, 6)), layers.EinsumDense('abc,cd->abd', (4, 5), name='culprit')])\n"
        "outputs = inner(inputs)"
    ),
}


STRIDED = """
import keras, numpy as np
import tfdpbc as dp
layers = keras.layers
first = layers.Conv2D(2, 1, strides=3)
model = keras.Sequential([keras.Input((15, 15, 3)), first, layers.GlobalAveragePooling2D(), layers.Dense(3)])
plan = dp.PrivacyPlan(dp.Shuffling(6, 6, 1), dp.FullGradientClipping(1.0), 1.0, 5)
private = dp.PrivateModel(model, plan, engine="onepass", physical_batch_size=5)
private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
rng = np.random.default_rng(0)
private.fit(rng.normal(size=(6, 15, 15, 3)).astype("float32"), rng.integers(0, 3, 6), verbose=0)
print("lives")
"""


def test_strides_beyond_the_kernel_do_not_corrupt_memory():
    """Without care this process ends with signal 11: MALLOC_CHECK_ makes the fault show at once."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "MALLOC_CHECK_": "3"}
    command = [sys.executable, "-c", STRIDED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "lives" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("body", BODIES)
def test_layers_that_abort_inside_the_map_run_outside_it(body):
    """The process lives, the round is computed, and the reason names the layer."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=BODIES[body])],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'culprit'" in done.stdout and "not safe inside tf.vectorized_map" in done.stdout
