"""What kills the process inside tf.vectorized_map is never run there: in processes of their own."""

import os
import subprocess
import sys

SCRIPT = """
import keras, numpy as np
import tfdpbc as dp
layers = keras.layers
def train(of):
    inputs = keras.Input((4, 6))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(of(inputs))))
    plan = dp.PrivacyPlan(dp.Shuffling(16, 4, 1), dp.FullGradientClipping(1.0), 1.0, 1)
    private = dp.PrivateModel(model, plan, engine="vectorized", physical_batch_size=4)
    private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    private.fit(rng.normal(size=(16, 4, 6)).astype("float32"), rng.integers(0, 3, 16), verbose=0)
    print(private.engine_reason, flush=True)


train(lambda inputs: layers.MultiHeadAttention(2, 3, name="attention")(inputs, inputs))
train(layers.EinsumDense("abc,cd->abd", (4, 5), name="einsum"))
train(keras.Sequential([keras.Input((4, 6)), layers.EinsumDense("abc,cd->abd", (4, 5), name="nested")]))
"""


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


def test_layers_that_abort_inside_the_map_run_outside_it():
    """The process lives, the rounds are computed, and each reason names its layer."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    reasons = done.stdout.strip().splitlines()[-3:]
    for layer, reason in zip(("attention", "einsum", "nested"), reasons, strict=True):
        assert f"'{layer}'" in reason and "not safe inside tf.vectorized_map" in reason
