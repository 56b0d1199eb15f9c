"""What a released model holds, and what it does not."""

import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdpbc.errors import IncompatibleModel, RunFolderError
from tfdpbc.export import GUARANTEE_FILE, export_model, load_exported

GUARANTEE = {"epsilon": 2.5, "delta": 1e-5, "sampling": "poisson", "covers": "the weights, ε and δ"}
EXTRA = {"classes": ["no", "yes"]}


def trained():
    """A model with everything that must stay at home: optimizer slots, seed generators, metrics, history, data."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.GaussianNoise(0.5),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images(32), np.arange(32) % 2, verbose=0)
    return model


def images(size):
    return np.random.default_rng(0).normal(size=(size, 6, 6, 1)).astype(np.float32)


def infer(model, x):
    return keras.tree.map_structure(np.asarray, model(x, training=False))


@pytest.fixture(scope="module")
def model():
    return trained()


@pytest.fixture(scope="module")
def exported_once(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("exports") / "run"
    export_model(model, path, GUARANTEE, EXTRA)
    return path


@pytest.fixture
def exported(exported_once, tmp_path):
    """A copy that the test may damage."""
    path = tmp_path / "run"
    shutil.copytree(exported_once, path)
    return path


def test_loads_with_what_was_exported(model, exported_once):
    loaded = load_exported(exported_once)
    assert loaded.guarantee == GUARANTEE
    assert loaded.extra == EXTRA
    assert loaded.input_spec.shape.as_list() == [None, 6, 6, 1]
    x = images(7)
    for batch_size in (1, 3, 7, 100):
        np.testing.assert_allclose(loaded.predict(x, batch_size=batch_size), infer(model, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loaded.predict(x), loaded.predict(tf.constant(x)))
    assert loaded.predict(x[:0]).shape == (0, 2)
    assert json.loads((exported_once / GUARANTEE_FILE).read_text()) == GUARANTEE


def test_inference_mode_is_baked_in(exported_once):
    """Dropout and noise are off, and batch normalisation does not look at the batch."""
    loaded, x = load_exported(exported_once), images(8)
    np.testing.assert_array_equal(loaded.predict(x), loaded.predict(x))
    np.testing.assert_allclose(loaded.predict(x)[:1], loaded.predict(x[:1]), rtol=1e-5, atol=1e-6)


LOAD_WITH_TENSORFLOW_ALONE = """
import json, sys
sys.modules["tfdpbc"] = sys.modules["keras"] = sys.modules["tf_keras"] = None  # an import of these would fail
import numpy as np
import tensorflow as tf

path, images, outputs = sys.argv[1:]
loaded = tf.saved_model.load(path)
x = np.load(images)
signature = loaded.signatures["serve"](tf.constant(x))
assert set(signature) == {"output_0"}, signature
assert set(loaded.signatures["serve"].structured_input_signature[1]) == {"inputs"}
np.testing.assert_array_equal(signature["output_0"], loaded.serve(x))
default = loaded.signatures["serving_default"](inputs=tf.constant(x))
np.testing.assert_array_equal(signature["output_0"], default["output_0"])
np.save(outputs, signature["output_0"].numpy())
text = loaded.signatures["guarantee"]()["guarantee"].numpy()
assert not [m for m in sys.modules if m.split(".")[0] in ("tfdpbc", "keras", "tf_keras") and sys.modules[m] is not None]
sys.stdout.write(text.decode())
"""


def test_tensorflow_alone_serves_it_and_reads_its_guarantee(model, exported_once, tmp_path):
    """pitfall 21: the SavedModel works where neither this package nor Keras can be imported."""
    np.save(tmp_path / "x.npy", images(5))
    arguments = [os.fspath(p) for p in (exported_once, tmp_path / "x.npy", tmp_path / "y.npy")]
    run = subprocess.run(
        [sys.executable, "-c", LOAD_WITH_TENSORFLOW_ALONE, *arguments],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONIOENCODING": "utf-8"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout) == GUARANTEE
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), infer(model, images(5)), rtol=1e-5, atol=1e-6)


def test_only_weights_are_inside(model, exported_once):
    """pitfall 21: no optimizer slot, no state of a random generator, no metric, no example and no source line."""
    stored = tf.train.load_checkpoint(os.fspath(exported_once / "variables" / "variables"))
    shapes = stored.get_variable_to_shape_map()
    values = [stored.get_tensor(name) for name in shapes if name != "_CHECKPOINTABLE_OBJECT_GRAPH"]
    seeds = [v for v in model.variables if "seed" in v.path]
    assert len(seeds) == 2, "the model must have what the export must leave out"
    assert len(model.optimizer.variables) > 2
    weights = [np.asarray(w) for w in model.weights]
    assert sorted(v.tobytes() for v in values) == sorted(w.tobytes() for w in weights)
    graph = (exported_once / "saved_model.pb").read_bytes()
    for secret in (b"Adam", b"adam", b"seed_generator", __file__.encode(), images(1).tobytes()[:64]):
        assert secret not in graph, secret
    assert b"guarantee" in graph


def inputs():
    return keras.Input((4,), name="a"), keras.Input((3,), name="b", dtype="int32")


def structures():
    return {
        "list": list(inputs()),
        "tuple": inputs(),
        "dict": dict(zip("ab", inputs(), strict=True)),
        "one": inputs()[0],
        "list of one": [inputs()[0]],
    }


@pytest.mark.parametrize("kind", list(structures()))
def test_structured_inputs_and_outputs(kind, tmp_path):
    structure = structures()[kind]
    leaves = keras.tree.flatten(structure)
    joined = (
        layers.Concatenate()([keras.ops.cast(leaf, "float32") for leaf in leaves]) if len(leaves) > 1 else leaves[0]
    )
    outputs = {"left": layers.Dense(2)(joined), "right": [layers.Dense(1)(joined)]}
    model = keras.Model(structure, outputs)
    export_model(model, tmp_path / "m", {})
    loaded = load_exported(tmp_path / "m")
    x = keras.tree.map_structure(lambda leaf: np.arange(5 * leaf.shape[1]).reshape(5, -1), structure)
    predicted = loaded.predict(x, batch_size=2)  # whole numbers of 64 bits: cast to the inputs' types
    expected = infer(model, keras.tree.map_structure(lambda leaf, value: value.astype(leaf.dtype), structure, x))
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), predicted, expected)
    flat = tf.saved_model.load(os.fspath(tmp_path / "m")).signatures["serve"]
    names = {"inputs"} if kind == "one" else {leaf.name for leaf in leaves}
    assert set(flat.structured_input_signature[1]) == names
    assert set(flat.structured_outputs) == {"left", "right"}
    if len(leaves) > 1:
        wrong = {"c": x} if kind == "dict" else dict(enumerate(keras.tree.flatten(x)))
        for bad in (np.ones((5, 4)), wrong):
            with pytest.raises(ValueError, match="x must be of the structure"):
                loaded.predict(bad)
    else:
        assert loaded.predict(np.ones((5, 4)))["left"].shape == (5, 2)


def test_several_outputs_without_names(tmp_path):
    a = keras.Input((4,))
    export_model(keras.Model(a, [layers.Dense(1)(a), layers.Dense(2)(a)]), tmp_path / "m", {})
    assert [part.shape for part in load_exported(tmp_path / "m").predict(np.ones((3, 4)))] == [(3, 1), (3, 2)]
    flat = tf.saved_model.load(os.fspath(tmp_path / "m")).signatures["serve"](tf.ones((3, 4)))
    assert {name: value.shape[1] for name, value in flat.items()} == {"output_0": 1, "output_1": 2}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x, training=None):
        return self.dense(x["a"] + x["b"] if isinstance(x, dict) else x) + (100.0 if training else 0.0)


@pytest.mark.parametrize("x", [np.ones((3, 4), "float32"), {"a": np.ones((3, 4), "f"), "b": np.ones((3, 4), "f")}])
def test_subclassed_models(x, tmp_path):
    model = Subclassed()
    with pytest.raises(IncompatibleModel, match="must be built"):
        export_model(model, tmp_path / "m", {})
    assert not list(tmp_path.iterdir())
    expected = infer(model, x)
    export_model(model, tmp_path / "m", {})
    more = keras.tree.map_structure(
        lambda leaf: np.concatenate([leaf] * 4), x
    )  # another batch size than it was built with
    np.testing.assert_allclose(load_exported(tmp_path / "m").predict(more)[:3], expected, rtol=1e-5)


def test_mixed_precision(tmp_path):
    half, single = layers.Dense(3, dtype="mixed_float16"), layers.Dense(2, dtype="float32")
    model = keras.Sequential([keras.Input((4,)), half, single])
    export_model(model, tmp_path / "m", {})
    x = np.ones((2, 4), "float32")
    np.testing.assert_allclose(load_exported(tmp_path / "m").predict(x), infer(model, x), rtol=1e-3)


def test_infinite_epsilon_is_written_as_null(tmp_path):
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    export_model(model, tmp_path / "m", {"epsilon": float("inf")})
    assert load_exported(tmp_path / "m").guarantee == {"epsilon": None}


def test_replaces_an_earlier_export_and_nothing_else(exported, model, tmp_path):
    stale = exported / "variables" / "stale"
    stale.write_text("of the earlier export")
    export_model(model, exported, {"epsilon": 1.0})
    assert load_exported(exported).guarantee == {"epsilon": 1.0}
    assert not stale.exists()
    (tmp_path / "empty").mkdir()
    export_model(model, tmp_path / "empty", {})

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("years of work")
    for name in ("mine", "file"):
        with pytest.raises(RunFolderError, match="exists and is not an exported model"):
            export_model(model, tmp_path / name, {})
    with pytest.raises(RunFolderError, match="cannot write an exported model"):
        export_model(model, tmp_path / "file" / "below", {})
    assert (tmp_path / "mine" / "thesis.tex").read_text() == (tmp_path / "file").read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "mine", "run"], "something was left behind"


def no_space(*_, **__):
    raise OSError(28, "No space left on device")


def break_save(monkeypatch):
    def save(module, path, **_):
        os.makedirs(os.path.join(path, "variables"))
        no_space()

    monkeypatch.setattr(tf.saved_model, "save", save)


def break_second_rename(monkeypatch):
    """The earlier export is moved out of the way, the new one does not get in, the earlier one is moved back."""
    steps = iter([os.replace, no_space, os.replace])
    monkeypatch.setattr(os, "replace", lambda *paths: next(steps)(*paths))


@pytest.mark.parametrize("break_it", [break_save, break_second_rename])
def test_a_failing_write_leaves_what_was_there(break_it, exported, model, tmp_path, monkeypatch):
    before = sorted(tmp_path.rglob("*"))
    break_it(monkeypatch)
    with pytest.raises(RunFolderError, match="cannot write an exported model to .*No space left on device"):
        export_model(model, exported, {})
    monkeypatch.undo()
    assert sorted(tmp_path.rglob("*")) == before
    assert load_exported(exported).guarantee == GUARANTEE


def test_export_is_readable_by_others(exported_once):
    """Folders made for scratch are private to the user; the export is as public as any file the user makes."""
    umask = os.umask(0)
    os.umask(umask)
    assert exported_once.stat().st_mode & 0o777 == 0o777 & ~umask


def remove(name):
    return lambda path: (path / name).unlink()


def cut(name, share=0.5):
    def damage(path):
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: int(len(content) * share)])

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            shutil.rmtree,
            "no exported model in .*saved_model.pb is missing",
        ),
        (remove("saved_model.pb"), "saved_model.pb is missing"),
        (remove(GUARANTEE_FILE), "guarantee.json is missing"),
        (remove("variables/variables.index"), "is damaged"),
        (remove("variables/variables.data-00000-of-00001"), "is damaged"),
        (cut("variables/variables.data-00000-of-00001"), "is damaged"),
        (cut("variables/variables.index"), "is damaged"),
        (cut("saved_model.pb"), "is damaged"),
        (cut("saved_model.pb", 0), "is damaged"),
        (cut(GUARANTEE_FILE), "is damaged"),
        (lambda path: (path / GUARANTEE_FILE).write_text('{"epsilon": 0.1}'), "guarantee.json is not its guarantee"),
    ],
)
def test_a_damaged_export_is_one_clear_line(damage, message, exported):
    damage(exported)
    with pytest.raises(RunFolderError, match=message) as caught:
        load_exported(exported)
    assert "\n" not in str(caught.value)


def test_a_saved_model_of_somebody_else(tmp_path):
    tf.saved_model.save(tf.Module(), os.fspath(tmp_path / "plain"))
    with pytest.raises(RunFolderError, match="guarantee.json is missing"):
        load_exported(tmp_path / "plain")


def test_lookup_tables_are_refused(tmp_path):
    words = layers.StringLookup(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), words, layers.Embedding(3, 2)])
    with pytest.raises(IncompatibleModel, match="such as a lookup table"):
        export_model(model, tmp_path / "m", {})
    assert not list(tmp_path.iterdir())


def test_bad_arguments(exported_once, tmp_path):
    with pytest.raises(TypeError, match="model must be a keras.Model"):
        export_model(lambda x: x, tmp_path / "m", {})
    loaded = load_exported(exported_once)
    with pytest.raises(ValueError, match=r"x must be of shape \(None, 6, 6, 1\)"):
        loaded.predict(np.ones((3, 5, 5, 1)))
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1"):
        loaded.predict(images(1), batch_size=0)
