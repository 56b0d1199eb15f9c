"""Two replicas trim what one does: the margin and the F largest are those of the whole round."""

import json
import os
import subprocess
import sys

import pytest

# Logical devices must be made before TensorFlow starts, hence a process of its own.
SCRIPT = """
import json
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tfdpbc as dp

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)


def train(strategy, kind, physical):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
        plan = dp.PrivacyPlan(dp.Poisson(0.25, 4, 16), dp.FullGradientClipping(1.5), 0.1, 1, kind)
        model = dp.PrivateModel(net, plan, seed=5, physical_batch_size=physical)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    logs = model.fit(x, y, verbose=0).history
    return model, logs


one, two = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
found = []
for threshold, physical in ((-1e9, 5),):
    kind = dp.TrimmedSum(6, 1.4, 2.0, threshold)
    (a, a_logs), (b, b_logs) = train(one, kind, physical), train(two, kind, physical)
    apart = max(float(np.abs(p - q).max()) for p, q in zip(a.model.get_weights(), b.model.get_weights()))
    copies = max(float(np.abs(np.subtract(*(t.numpy() for t in v.value.values))).max()) for v in b.trainable_variables)
    found.append([apart, copies, a.test_failures, b.test_failures, b_logs["test_failures"][-1]])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_replicas_release_what_one_does():
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for apart, copies, one, two, share in found:
        assert apart < 1e-5 and copies == 0
        assert one == two and share == one / 4
    assert found[0][2] == 0  # all passed, so all trimmed
