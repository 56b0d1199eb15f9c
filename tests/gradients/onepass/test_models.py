"""Whole models: subclasses with a graph, and the architectures of keras.applications."""

import keras
import numpy as np
import pytest

from tests.gradients.onepass.agreement import check, perturbed
from tfdpbc import models
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.onepass import rowwise, unsupported

layers = keras.layers


class TokenAndPosition(keras.Model):
    """Sums of token and position embeddings; its table is the caller's, which also projects with it."""

    def __init__(self, table, length, width, **options):
        tokens = keras.Input((length,), dtype="int32", name="tokens")
        positions = keras.ops.expand_dims(np.arange(length), 0)
        hidden = table(tokens) + layers.Embedding(length, width)(positions * keras.ops.ones_like(tokens))
        super().__init__(tokens, hidden, **options)
        self.width = width

    def get_config(self):
        return {"width": self.width}


class Encoder(keras.Model):
    def __init__(self, length, width, **options):
        inputs = keras.Input((length, width))
        attended = layers.MultiHeadAttention(2, width // 2)(inputs, inputs, use_causal_mask=True)
        hidden = layers.LayerNormalization()(inputs + attended)
        inner = layers.Dense(width)(layers.Dense(2 * width, "gelu")(hidden))
        super().__init__(inputs, layers.LayerNormalization()(layers.Add()([hidden, inner])), **options)


class Backbone(keras.Model):
    """As those of keras_hub are built: layers, then the functional constructor, then attributes."""

    def __init__(self, size=9, length=5, width=4, depth=2, **options):
        table = layers.ReversibleEmbedding(size, width)
        embed = TokenAndPosition(table, length, width, name="embed")
        encoders = [Encoder(length, width, name=f"encoder_{i}") for i in range(depth)]
        tokens = keras.Input((length,), dtype="int32", name="tokens")
        hidden = embed(tokens)
        for encoder in encoders:
            hidden = encoder(hidden)
        super().__init__(tokens, hidden, **options)
        self.table, self.encoders, self.size = table, encoders, size

    @property
    def token_embedding(self):
        return self.table


class Extended(Backbone):
    """A subclass of a subclass."""


def tokens(size=9, length=5, n=4):
    return np.random.default_rng(2).integers(0, size, (n, length)).astype(np.int32)


def vectors(*shape, n=4):
    return np.random.default_rng(1).normal(size=(n, *shape)).astype(np.float32)


def classified(backbone):
    """A model of a backbone, two levels deep in it."""
    inputs = keras.Input(backbone.input_shape[1:], dtype=backbone.inputs[0].dtype)
    return perturbed(keras.Model(inputs, layers.Dense(3)(layers.Flatten()(backbone(inputs)))))


@pytest.mark.parametrize("kind", [Backbone, Extended])
def test_a_subclass_with_a_graph_is_its_graph(kind):
    keras.utils.set_random_seed(5)
    model = classified(kind())
    assert unsupported(model, BatchGradient()) == []
    check(model, tokens(), groups=[[0, 1], [2, 3]])


def test_a_backbone_s_table_may_be_tied():
    keras.utils.set_random_seed(5)
    backbone = Backbone()
    inputs = keras.Input((5,), dtype="int32")
    logits = backbone.token_embedding(backbone(inputs), reverse=True)
    model = perturbed(keras.Model(inputs, layers.GlobalAveragePooling1D()(logits)))
    check(model, tokens())


class Stack(keras.Sequential):
    def __init__(self):
        super().__init__([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(5)])


def test_a_subclass_of_sequential_is_its_graph():
    keras.utils.set_random_seed(5)
    check(classified(Stack()), vectors(5))


class Net(keras.Model):
    def __init__(self):
        inputs = keras.Input((5,), name="x")
        super().__init__(inputs, layers.Dense(4, "tanh")(inputs))


class OwnCall(Net):
    def call(self, inputs, training=None):
        hidden = super().call(inputs, training=training)
        return hidden - keras.ops.mean(hidden, 0)


class OwnCallOperator(Net):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) * 2


class OwnGraphWalk(Net):
    def _run_through_graph(self, *args, **kwargs):
        return super()._run_through_graph(*args, **kwargs)


class Mixin:
    def _standardize_inputs(self, inputs):
        return [t * 2 for t in super()._standardize_inputs(inputs)]


class Mixed(Mixin, Net):
    pass


class OwnVariables(Net):
    @property
    def trainable_variables(self):
        return super().trainable_variables[:1]


class OwnStack(Stack):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs)


OVERRIDING = {
    OwnCall: "call",
    OwnCallOperator: "__call__",
    OwnGraphWalk: "_run_through_graph",
    Mixed: "_standardize_inputs",
    OwnVariables: "trainable_variables",
    OwnStack: "call",
}


@pytest.mark.parametrize("kind", OVERRIDING, ids=lambda kind: kind.__name__)
def test_a_subclass_that_overrides_the_forward_pass_is_refused_by_name(kind):
    """pitfall 19: such a model may do anything with its rows."""
    for model in (kind(), classified(kind())):
        (reason,) = unsupported(model, BatchGradient())
        assert f"({kind.__name__}) overrides {OVERRIDING[kind]} of" in reason


def test_a_subclass_whose_graph_mixes_rows_is_refused():
    class Centred(keras.Model):
        def __init__(self):
            inputs = keras.Input((5,))
            super().__init__(inputs, inputs - keras.ops.mean(inputs, 0, keepdims=True))

    reasons = unsupported(classified(Centred()), BatchGradient())
    assert any("may mix rows" in reason for reason in reasons)
    rowwise(Centred)  # its author knows better
    assert unsupported(classified(Centred()), BatchGradient()) == []


def test_training_methods_and_new_names_of_a_subclass_do_not_matter():
    class Trained(Net):
        def train_step(self, data):
            raise NotImplementedError

        def compile(self, *args, **kwargs):
            raise NotImplementedError

        def describe(self):
            return "a net"

    assert unsupported(Trained(), BatchGradient()) == []


def application(name, frozen=True, **options):
    """An architecture of keras.applications at its smallest, its batch normalisations frozen."""
    keras.utils.set_random_seed(5)
    model = getattr(keras.applications, name)(
        **{"weights": None, "include_top": False, "input_shape": (32, 32, 3), "pooling": "avg", **options}
    )
    for layer in model._flatten_layers():
        if frozen and isinstance(layer, layers.BatchNormalization):
            layer.trainable = False
    return model


def convnext(**options):
    from keras.src.applications.convnext import ConvNeXt

    keras.utils.set_random_seed(5)
    shapes = {"depths": (1, 1, 1, 1), "projection_dims": (8, 8, 12, 12), "input_shape": (32, 32, 3)}
    return ConvNeXt(**shapes, weights=None, include_top=False, pooling="avg", name="convnext", **options)


def test_an_application_with_frozen_batch_normalisation():
    """The first three blocks of MobileNetV2; the others are of the same kinds."""
    whole = application("MobileNetV2", alpha=0.1)
    pooled = layers.GlobalAveragePooling2D()(whole.get_layer("block_2_add").output)
    model = perturbed(keras.Model(whole.input, layers.Dense(3)(pooled)))
    assert any(isinstance(layer, layers.BatchNormalization) for layer in model.layers)
    check(model, 50 * vectors(32, 32, 3, n=2))


SUPPORTED = {
    "VGG16": lambda: application("VGG16"),
    "MobileNetV3Small": lambda: application("MobileNetV3Small", alpha=0.1),
    "ConvNeXt": convnext,
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_applications_are_supported(name):
    assert unsupported(SUPPORTED[name](), BatchGradient()) == []


def test_batch_normalisation_in_training_is_refused_by_name():
    reasons = unsupported(application("MobileNetV2", frozen=False, alpha=0.1), BatchGradient())
    assert len(reasons) > 10
    assert all("(BatchNormalization)" in reason for reason in reasons)
    assert "'bn_Conv1'" in " ".join(reasons)


def test_stochastic_depth_is_refused_by_name():
    reasons = unsupported(convnext(drop_path_rate=0.3), BatchGradient())
    assert reasons and all("(StochasticDepth)" in reason for reason in reasons)


def transformer():
    """Two blocks over tokens and positions, as in benchmarks/step.py."""
    inputs = [keras.Input([64], dtype="int32"), keras.Input([64], dtype="int32")]
    x = layers.Embedding(500, 64)(inputs[0]) + layers.Embedding(64, 64)(inputs[1])
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, activation="gelu")(x)))
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))


IMAGES = {
    "tutorial_cnn": ((28, 28, 1), {}),
    "mlp": ((28, 28, 1), {}),
    "convnet": ((32, 32, 3), {}),
    "convnet_groupnorm": ((32, 32, 3), {"normalization": "group"}),
    # A whole one-example loop of it takes half a minute.
    "resnet18": ((32, 32, 3), {"normalization": "group"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "resnet18")) for name in (*IMAGES, "transformer")]
)
def test_the_benchmark_s_models_agree_with_a_loop(name):
    """pitfall 19: 1e-5 of the gradient's norm on each model of benchmarks/step.py, with smooth activations."""
    keras.utils.set_random_seed(3)
    if name == "transformer":
        y = np.array([0, 1, 1])
        return check(transformer(), (tokens(500, 64, 3), np.tile(np.arange(64, dtype=np.int32), (3, 1))), y)
    shape, options = IMAGES[name]
    model = models.build(name.split("_group")[0], shape, 10, activation="tanh", **options)
    check(model, vectors(*shape, n=3), np.array([0, 4, 9]))
