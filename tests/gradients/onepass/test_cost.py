"""What the engine says it costs, against sums by hand."""

import keras
import pytest

from tests.gradients.onepass.agreement import classifier
from tfdpbc import native
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.onepass import OnePassEngine, cost

layers = keras.layers


def trace(model, examples=1):
    blocks = [0] * len(model.trainable_variables)
    engine = OnePassEngine(ModelFunction(model, None), BatchGradient(), 1.0, blocks, 1, 1)
    with native.off():  # the choices below are those of TensorFlow's own operations
        return cost.trace(engine, model.inputs[0], examples)


def test_layers_in_order_with_their_rules_and_ways():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(4, 3, name="wide"),
            layers.Conv2D(64, 3, 2, name="deep"),
            layers.Conv2D(64, 3, name="small"),
            layers.Reshape((-1, 64)),
            layers.LayerNormalization(name="norm"),
            layers.Dense(50, name="tokens"),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ]
    )
    found = {c.layer: (c.kind, c.rule, c.norms) for c in trace(model).layers}
    assert list(found) == ["wide", "deep", "small", "norm", "tokens", "logits"]
    assert found["wide"] == ("Conv2D", "Conv2DRule", "gradients")
    assert found["small"] == ("Conv2D", "Conv2DRule", "pixel Gram matrices")
    assert found["norm"] == ("LayerNormalization", "LayerNormalizationRule", "gradients")
    assert found["tokens"] == ("Dense", "DenseRule", "Gram matrices")
    assert found["logits"] == ("Dense", "DenseRule", "factors")
    table = keras.Sequential(
        [keras.Input((7,), dtype="int32"), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(2)]
    )
    assert trace(table).layers[0].norms == "look-ups"


def test_operations_of_a_dense_layer():
    """Its weighted sum multiplies 500 inputs with 300 outputs: 2 operations a pair. Norms from factors cost next to that."""
    dense = trace(keras.Sequential([keras.Input((500,)), layers.Dense(300)])).layers[0]
    assert 2 * 500 * 300 <= 1e6 * dense.megaflops <= 1.2 * 2 * 500 * 300
    # Squares and scaled copies of input and gradient, and its share (1/13) of the sum.
    assert 4 * (500 + 300) <= 2**10 * dense.kibibytes <= 4 * (8 * (500 + 300) + 4 * 500 * 300 / 13)


@pytest.mark.parametrize("examples", [1, 5])
def test_memory_counts_every_tensor_of_a_contribution(examples):
    model = classifier((40,), layers.Dense(70, "tanh"), layers.Dense(90, "tanh"))
    activations = 4 * examples * (40 + 2 * 70 + 2 * 90)  # and as many gradients
    assert 2 * activations <= trace(model, examples).bytes <= 12 * activations


def test_a_layer_that_the_loss_does_not_use():
    inputs = keras.Input((4,))
    used, unused = layers.Dense(3, name="used"), layers.Dense(2, name="unused")
    unused(inputs)
    model = keras.Model(inputs, used(inputs))
    assert [c.layer for c in trace(model).layers] == ["used"]
