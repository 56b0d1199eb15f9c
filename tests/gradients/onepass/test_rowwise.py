"""What the engine takes to treat rows on their own does so; the examples of docs/layer_rules.md work."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests.gradients.onepass.agreement import check
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.onepass import rowwise, unsupported
from tfdpbc.gradients.onepass.operations import reasons
from tfdpbc.gradients.onepass.registry import registered
from tfdpbc.gradients.onepass.rowwise import _ACTIVATIONS, _LAYERS, _LOSSES, is_rowwise_loss

ARGUMENTS = {
    "Activation": ("tanh",),
    "AveragePooling1D": (2,),
    "AveragePooling2D": (2,),
    "AveragePooling3D": (2,),
    "GroupedQueryAttention": (3, 4, 2),
    "CenterCrop": (2, 2),
    "CustomScaleLayer": (0.5,),
    "Cropping1D": (1,),
    "Dropout": (0.5,),
    "AlphaDropout": (0.5,),
    "GaussianDropout": (0.5,),
    "GaussianNoise": (0.5,),
    "RepeatVector": (3,),
    "Rescaling": (0.5,),
    "Resizing": (5, 5),
    "Reshape": ((-1,),),
    "SpatialDropout1D": (0.5,),
    "SpatialDropout2D": (0.5,),
    "SpatialDropout3D": (0.5,),
    "Dot": (1,),
    "MultiHeadAttention": (2, 3),
    "GroupQueryAttention": (3, 4, 2),
    "AdaptiveAveragePooling1D": (2,),
    "AdaptiveMaxPooling1D": (2,),
    "AdaptiveAveragePooling2D": (2,),
    "AdaptiveMaxPooling2D": (2,),
}
MERGES = {"Add", "Average", "Concatenate", "CustomScaleLayer", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"}
ATTENTIONS = {"MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention"}
KINDS = [kind for kind in _LAYERS if kind.__module__.startswith("keras.") and kind.__name__ not in ("InputLayer",)]


def make(kind):
    """(layer, number of inputs as a list, shape of one row)."""
    name = kind.__name__
    if name == "Bidirectional":
        return kind(keras.layers.GRU(3)), (4, 6)
    if name == "Permute":
        return kind((2, 1)), (4, 6)
    if name == "Normalization":
        return kind(mean=1.0, variance=2.0), (6,)
    if name == "Dot":
        return kind(1), (6,)
    rank = {"1D": 1, "2D": 2, "3D": 3}.get(name[-2:], 2 if name in ("CenterCrop", "Resizing") else 0)
    shape = {0: (6,), 1: (5, 4), 2: (6, 6, 2), 3: (4, 4, 4, 2)}[rank]
    if "ttention" in name:
        shape = (5, 6)
    return kind(*ARGUMENTS.get(name, ())), shape


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_row_of_a_listed_layer_does_not_depend_on_others(kind):
    layer, shape = make(kind)
    generators = [g for sub in layer._flatten_layers() for g in getattr(sub, "_seed_generators", [])]

    def output(x):
        for generator in generators:
            generator.state.assign(np.array([3, 4], np.uint32))
        x = tf.constant(x)
        name = kind.__name__
        if name in MERGES:
            return layer([x, tf.sin(x)])
        if name in ATTENTIONS:
            return layer(x, x, training=True)
        if "ttention" in name:
            return layer([x, tf.sin(x)], training=True)
        return layer(x, training=True) if layer._call_has_training_arg else layer(x)

    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    output(x)  # builds
    first = output(x).numpy()
    x[0] = 100.0 * np.random.default_rng(1).normal(size=shape)
    second = output(x).numpy()
    np.testing.assert_allclose(first[1:], second[1:], rtol=1e-6, atol=1e-7)
    assert len(first) == 3


@pytest.mark.parametrize("name", [n for n in _ACTIVATIONS if hasattr(keras.activations, n)])
def test_a_row_of_a_listed_activation_does_not_depend_on_others(name):
    function = getattr(keras.activations, name)
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    changed = x.copy()
    changed[0] = 50.0
    arguments = (0.1, 0.2) if name == "threshold" else ()
    first, second = (function(tf.constant(t), *arguments).numpy() for t in (x, changed))
    np.testing.assert_allclose(first[1:], second[1:], rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in _LOSSES if hasattr(keras.losses, n)])
def test_a_row_of_a_listed_loss_does_not_depend_on_others(name):
    loss = getattr(keras.losses, name)()
    assert is_rowwise_loss(loss)
    p = tf.nn.softmax(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)).numpy()
    y = np.array([1, 2, 0]) if name.startswith("Sparse") else np.eye(4, dtype=np.float32)[[1, 2, 0]]
    first = loss.call(tf.constant(y), tf.constant(p)).numpy()
    p[0] = p[0, ::-1]
    second = loss.call(tf.constant(y), tf.constant(p)).numpy()
    assert len(first) == 3
    np.testing.assert_allclose(first[1:], second[1:], rtol=1e-6)


def test_losses_that_couple_rows_are_not_listed():
    assert not is_rowwise_loss(keras.losses.Dice())
    assert not is_rowwise_loss(keras.losses.CosineSimilarity(axis=0))
    assert not is_rowwise_loss(lambda y, p: p)


def _attention(kind, shape, **options):
    """A model of one attention layer whose mask is an input of the given shape."""
    inputs, mask = keras.Input((2, 4)), keras.Input(shape, dtype="bool")
    layer = kind(2, 3, **options) if kind is keras.layers.MultiHeadAttention else kind(3, 2, 1, **options)
    outputs = layer(inputs, inputs, attention_mask=mask if shape else None)
    return keras.Model([inputs, mask], keras.layers.Dense(3)(keras.layers.Flatten()(outputs)))


@pytest.mark.parametrize("kind", [keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention])
def test_attention_masks_keep_their_rows(kind):
    """Keras reads a mask of rank 2 as [queries, keys]: that of one row would serve a query of all rows."""
    assert not unsupported(_attention(kind, (2, 2)), dp.BatchGradient())
    assert "attention_mask of rank 2" in " ".join(unsupported(_attention(kind, (2,)), dp.BatchGradient()))


def test_attention_over_the_rows_is_refused():
    def model(axes):
        inputs = keras.Input((3, 5, 4))
        outputs = keras.layers.MultiHeadAttention(2, 3, attention_axes=axes, name="culprit")(inputs, inputs)
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(outputs)))

    assert not unsupported(model((1, 2)), dp.BatchGradient())
    for axes in ((0,), (0, 1), (-4,)):
        assert "'culprit'" in " ".join(unsupported(model(axes), dp.BatchGradient()))


def test_layers_without_trainable_weights_are_asked_too():
    """What a rule refuses may mix rows, frozen or not."""
    mixing = keras.layers.LayerNormalization(axis=0, center=False, scale=False, name="culprit")
    frozen = keras.layers.LSTM(3, recurrent_activation=lambda x: x - keras.ops.mean(x, 0), name="culprit")
    frozen.trainable = False
    for shape, layer in (((5,), mixing), ((4, 5), frozen)):
        model = keras.Sequential([keras.Input(shape), layer, keras.layers.Dense(2)])
        assert "'culprit'" in " ".join(unsupported(model, dp.BatchGradient()))


OPERATIONS = {
    # (operation on a symbolic [rows, 4, 6], whether it keeps rows apart)
    "elementwise": (lambda x: keras.ops.tanh(x) + 1.0, True),
    "constant": (lambda x: x * np.ones((4, 6), np.float32), True),
    "constant per row": (lambda x: x * np.ones((5, 4, 6), np.float32), False),
    "broadcast of rows": (lambda x: x + keras.ops.mean(x, axis=(1, 2), keepdims=False), False),
    "mean over features": (lambda x: x - keras.ops.mean(x, axis=-1, keepdims=True), True),
    "mean over rows": (lambda x: x - keras.ops.mean(x, axis=0, keepdims=True), False),
    "sum over all": (lambda x: x * keras.ops.sum(x), False),
    "softmax": (lambda x: keras.ops.softmax(x, axis=1), True),
    "softmax over rows": (lambda x: keras.ops.softmax(x, axis=0), False),
    "negative first axis": (lambda x: keras.ops.softmax(x, axis=-3), False),
    "reshape": (lambda x: keras.ops.reshape(x, (-1, 8, 3)), True),
    "reshape over rows": (lambda x: keras.ops.reshape(x, (-1, 3)), False),
    "transpose": (lambda x: keras.ops.transpose(x, (0, 2, 1)), True),
    "transpose of rows": (lambda x: keras.ops.transpose(x, (1, 0, 2)), False),
    "matmul": (lambda x: keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))), True),
    "slice": (lambda x: x[:, 1:], True),
    "slice of rows": (lambda x: x[::2, :], False),
    "concatenate": (lambda x: keras.ops.concatenate([x, x], axis=1), True),
    "concatenate rows": (lambda x: keras.ops.concatenate([x, x], axis=0), False),
    "flip of rows": (lambda x: keras.ops.flip(x, axis=0), False),
    "stack": (lambda x: keras.ops.stack([x, x], axis=1), True),
    "unknown": (lambda x: keras.ops.einsum("abc,dbc->abc", x, x), False),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_functional_models(name):
    operation, fine = OPERATIONS[name]
    inputs = keras.Input((4, 6))
    found = reasons(keras.Model(inputs, operation(inputs)))
    assert (not found) == fine, found


def test_the_documentation_s_examples_work():
    text = (pathlib.Path(__file__).parents[3] / "docs" / "layer_rules.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4, 6)), names["Gated"](5), names["Centred"](), layers.Flatten(), layers.Dense(3)]
    )
    x = np.random.default_rng(0).normal(size=(4, 4, 6)).astype(np.float32)
    check(model, x)
    check(model, x, groups=[[0, 1], [2, 3]])


def test_the_documentation_names_every_rule():
    text = (pathlib.Path(__file__).parents[3] / "docs" / "layer_rules.md").read_text()
    text += " DepthwiseConv2D SeparableConv2D"  # written "1D/2D"
    for kind in registered():
        if kind.__module__.startswith("keras."):
            assert kind.__name__ in text


def test_subclassed_models_are_vouched_for_by_their_author():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)

        def call(self, x, training=None):
            return self.second(self.first(x))

    model = Net()
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    model(x)
    assert any("Net" in reason for reason in unsupported(model, BatchGradient()))
    rowwise(Net)
    check(model, x)
