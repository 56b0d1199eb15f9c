"""Two replicas release what one does: clipped sums added up, noised once."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tests import oracles
from tfdpbc.training import replicas

# Logical devices must be made before TensorFlow starts, hence a process of its own.
SCRIPT = """
import json, sys
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tfdpbc as dp
from tfdpbc.errors import IncompatibleModel

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)


def build(strategy, sampling, engine, noise, **options):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
        plan = dp.PrivacyPlan(sampling, dp.FullGradientClipping(0.5), noise, 2)
        model = dp.PrivateModel(net, plan, seed=5, engine=engine, physical_batch_size=3)
        # The optimizer's own clipping must see the update, not a part of it.
        model.compile(
            keras.optimizers.Adam(0.01, clipnorm=0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"], steps_per_execution=3, **options,
        )
    return model


def train(strategy, *case):
    model = build(strategy, *case)
    history = model.fit(x, y, verbose=0).history
    return model, history


one, two = tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
found = []
CASES = {
    "quick": ((dp.Shuffling(64, 7, 1), "onepass"), (dp.Poisson(0.1, 9, 16), "vectorized")),
    "slow": ((dp.Shuffling(64, 1, 8), "vectorized"), (dp.Poisson(0.1, 9, 16), "onepass")),
}
for sampling, engine in CASES[sys.argv[1]]:
    case = sampling, engine, 1.0
    (a, a_history), (b, b_history) = train(one, *case), train(two, *case)
    apart = [float(np.abs(p - q).max()) for p, q in zip(a.model.get_weights(), b.model.get_weights())]
    copies = [float(np.abs(np.subtract(*(t.numpy() for t in v.value.values))).max())
              for v in b.model.trainable_variables]
    logs = [float(np.abs(np.subtract(a_history[name], b_history[name])).max()) for name in a_history]
    found.append([max(apart), max(copies), max(logs), a.spent.rounds, b.spent.rounds])
if sys.argv[1] == "slow":
    print(json.dumps({"found": found}))
    sys.exit()
b.save_checkpoint("checkpoint")
fresh = build(two, *case)
fresh.load_checkpoint("checkpoint")
restored = all((p == q).all() for p, q in zip(b.model.get_weights(), fresh.model.get_weights()))
def augmented(row, seed):
    return row + tf.random.stateless_normal(row.shape, seed)


with two.scope():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
    plan = dp.PrivacyPlan(dp.Poisson(0.1, 9, 16), dp.FullGradientClipping(0.5), 1.0, 2)
    both = dp.PrivateModel(net, plan, seed=5, augment=augmented, augmentations=2, averaging=0.9)
    both.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
seen = [[w.copy() for w in net.get_weights()]]
record = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: seen.append([w.copy() for w in net.get_weights()])
)
both.fit(x, y, verbose=0, callbacks=[record])
average = seen[0]
for t, now in enumerate(seen[1:]):
    d = min(0.9, (1 + t) / (10 + t))
    average = [d * a + (1 - d) * w for a, w in zip(average, now)]
mirrored = [*both.trainable_variables, *both.averages.variables, both.averages.count]
averaged = {
    "rounds": len(seen) - 1,
    "copies": max(float(np.abs(np.subtract(*(t.numpy() for t in v.value.values))).max()) for v in mirrored),
    "apart": max(float(np.abs(v.numpy() - a).max()) for v, a in zip(both.averages.variables, average)),
    "count": int(both.averages.count.numpy()),
}
refused = []
for settings, options in (({}, {"jit_compile": True}), ({"gradient_accumulation_steps": 2}, {}), ({"use_ema": True}, {})):
    try:
        model = build(two, dp.Shuffling(64, 8, 1), "onepass", 1.0)
        with two.scope():
            optimizer, loss = keras.optimizers.SGD(**settings), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss, **options)
        model.fit(x, y, verbose=0)
    except ValueError as error:
        refused.append(str(error))
outside = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
try:
    with two.scope():
        dp.PrivateModel(outside, dp.PrivacyPlan(dp.Shuffling(64, 8, 1), dp.FullGradientClipping(1.0), 1.0, 2))
except IncompatibleModel as error:
    refused.append(str(error))
with two.scope():
    net = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    plan = dp.PrivacyPlan(dp.Shuffling.batch(64, 8), dp.FullGradientClipping(1.0), 1.0, 2)
    unprotected = dp.PrivateModel(net, plan, statistics="unprotected")
    unprotected.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
try:
    unprotected.fit(x, y, verbose=0)
except IncompatibleModel as error:
    refused.append(str(error))
print(json.dumps({"found": found, "restored": restored, "spent": fresh.spent.rounds, "refused": refused,
                  "averaged": averaged}))
"""


def found_by(cases, folder):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", SCRIPT, cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return found_by("quick", tmp_path_factory.mktemp("replicas"))


def check_found(found):
    """Weights, the two copies of them, losses and metrics; the noise of the same seed was added once."""
    assert len(found) == 2
    for apart, copies, logs, one, two in found:
        assert apart < 1e-6 and copies == 0 and logs < 1e-5
        assert one == two > 0


def test_two_replicas_give_what_one_gives(answer):
    check_found(answer["found"])


@pytest.mark.slow
def test_two_replicas_give_what_one_gives_with_the_other_engine_each(tmp_path):
    check_found(found_by("slow", tmp_path)["found"])


def test_checkpoints_of_replicas(answer):
    assert answer["restored"] and answer["spent"] == 18


def test_augmented_and_averaged_replicas_hold_the_same(answer):
    """Each augments its own share; weights and averages are equal on both, and the average is the recursion."""
    averaged = answer["averaged"]
    assert averaged["rounds"] == averaged["count"] == 18
    assert averaged["copies"] == 0 and averaged["apart"] < 1e-5


def test_what_replicas_cannot_do_is_refused(answer):
    xla, accumulates, averages, outside, state = answer["refused"]
    assert "without gradient_accumulation_steps" in accumulates and "without use_ema" in averages
    assert "jit_compile must be False with several replicas" in xla
    assert "made outside" in outside
    assert "cannot write the state" in state


def test_other_strategies_are_refused():
    class Other:
        num_replicas_in_sync = 2

    with pytest.raises(ValueError, match="MirroredStrategy.*Other"):
        replicas.check(Other(), oracles.dense_net())
    replicas.check(tf.distribute.get_strategy(), oracles.dense_net(), True, [1])  # one replica: as always
