"""Each layer rule against a loop over examples, one contribution at a time."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracles
from tests.gradients.onepass.agreement import check, classifier, gather, onepass, perturbed
from tfdpbc import native
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.onepass import rules, unsupported
from tfdpbc.gradients.onepass.registry import registered
from tfdpbc.gradients.onepass.rules import applications

layers = keras.layers
SINGLE, PAIRS = [[0], [1], [2], [3]], [[0, 1], [2, 3]]
few = settings(max_examples=12)


def images(*shape, n=4):
    return np.random.default_rng(1).normal(size=(n, *shape)).astype(np.float32)


def draw_conv(draw, rank, most):
    """(input size, options) of a convolution; the input has about `most` or fewer pixels a side."""
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    strides, dilation = (1,) * rank, (1,) * rank
    if draw(st.booleans()):
        strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
        if draw(st.booleans()):
            strides = strides[:1] * rank
    elif draw(st.booleans()):
        dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    size = tuple(
        draw(st.integers((k - 1) * r + 1, max(most, (k - 1) * r + 1))) for k, r in zip(kernel, dilation, strict=True)
    )
    padding = draw(st.sampled_from(["same", "valid"]))
    return size, {"kernel_size": kernel, "strides": strides, "dilation_rate": dilation, "padding": padding}


@st.composite
def convolutions(draw, rank, most=9):
    return draw_conv(draw, rank, most)


class TestDense:
    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5)], ids=str)
    @pytest.mark.parametrize("bias", [True, False])
    def test_vectors_and_sequences(self, shape, groups, bias):
        check(classifier(shape, layers.Dense(4, "tanh", use_bias=bias)), images(*shape), groups=groups)

    @pytest.mark.parametrize("units", [2, 90])
    def test_long_sequences_by_gradient_and_by_gram_matrix(self, units):
        check(classifier((40, units), layers.Dense(units, "gelu")), images(40, units))

    def test_lora(self):
        dense = layers.Dense(4, "tanh")
        model = classifier((3, 5), dense)
        dense.enable_lora(2)
        assert len(model.trainable_variables) == 5
        check(perturbed(model), images(3, 5), groups=PAIRS)
        for adapter in (dense.lora_kernel_a, dense.lora_kernel_b):
            adapter.trainable = False
            assert len(model.trainable_variables) == 4
            check(model, images(3, 5), groups=PAIRS)
            adapter.trainable = True


class TestConv:
    @few
    @given(convolutions(2), st.integers(1, 3), st.sampled_from([2, 6]), st.sampled_from([SINGLE, PAIRS]))
    def test_conv2d(self, convolution, channels, filters, groups):
        size, options = convolution
        check(
            classifier((*size, channels), layers.Conv2D(filters, activation="tanh", **options)),
            images(*size, channels),
            groups=groups,
        )

    @pytest.mark.parametrize("padding", ["same", "valid"])
    @pytest.mark.parametrize(
        ("size", "kernel", "stride", "channels", "filters"),
        [(6, 3, 1, 40, 40), (7, 4, 2, 16, 16), (7, 3, 2, 32, 32), (4, 1, 1, 64, 64), (5, 1, 2, 64, 64)],
        ids=str,
    )
    def test_conv2d_by_gram_matrix(self, size, kernel, stride, channels, filters, padding, monkeypatch):
        from tfdpbc.gradients.onepass.rules import conv2d

        used = []
        original = conv2d.PixelGram
        monkeypatch.setattr(conv2d, "PixelGram", lambda *a: used.append(a) or original(*a))
        model = classifier(
            (size, size, channels), layers.Conv2D(filters, kernel, stride, padding=padding, activation="tanh")
        )
        with native.off():
            check(model, images(size, size, channels))
        assert used  # else this tests nothing new

    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize("bias", [True, False])
    def test_groups(self, groups, bias):
        model = classifier((6, 5, 6), layers.Conv2D(9, 3, groups=3, padding="same", use_bias=bias))
        check(model, images(6, 5, 6), groups=groups)

    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize(
        ("shape", "layer"),
        [
            ((9, 4), lambda: layers.Conv1D(6, 3, padding="causal", groups=2, activation="tanh")),
            ((6, 5, 4), lambda: layers.Conv2D(6, 3, strides=2, padding="same", activation="tanh")),
            ((6, 5, 4), lambda: layers.Conv2D(6, (2, 3), groups=2, use_bias=False)),
            ((4, 4, 3, 2), lambda: layers.Conv3D(3, 2)),
        ],
        ids=["Conv1D", "Conv2D", "Conv2D in groups", "Conv3D"],
    )
    def test_lora(self, shape, layer, groups):
        layer = layer()
        model = classifier(shape, layer)
        layer.enable_lora(2, lora_alpha=3)
        check(perturbed(model), images(*shape), groups=groups)

    @few
    @given(convolutions(1), st.sampled_from([SINGLE, PAIRS]), st.booleans())
    def test_conv1d(self, convolution, groups, causal):
        size, options = convolution
        options["padding"] = "causal" if causal else options["padding"]
        model = classifier((*size, 2), layers.Conv1D(3, activation="tanh", **options))
        check(model, images(*size, 2), groups=groups)

    @settings(max_examples=5)
    @given(convolutions(3, most=5), st.sampled_from([SINGLE, PAIRS]))
    def test_conv3d(self, convolution, groups):
        size, options = convolution
        check(classifier((*size, 2), layers.Conv3D(3, **options)), images(*size, 2), groups=groups)

    @few
    @given(convolutions(2), st.integers(1, 2), st.sampled_from([SINGLE, PAIRS]))
    def test_depthwise(self, convolution, multiplier, groups):
        size, options = convolution
        options["strides"] = options["strides"][:1] * 2  # TensorFlow knows equal strides only
        layer = layers.DepthwiseConv2D(depth_multiplier=multiplier, activation="tanh", **options)
        check(classifier((*size, 3), layer), images(*size, 3), groups=groups)

    @settings(max_examples=6)
    @given(convolutions(2), st.integers(1, 2), st.booleans())
    def test_separable(self, convolution, multiplier, bias):
        size, options = convolution
        options["strides"] = options["strides"][:1] * 2
        layer = layers.SeparableConv2D(4, depth_multiplier=multiplier, activation="tanh", use_bias=bias, **options)
        check(classifier((*size, 3), layer), images(*size, 3), groups=PAIRS)

    def test_one_dimensional_depthwise_and_separable(self):
        model = classifier((9, 3), layers.DepthwiseConv1D(3), layers.SeparableConv1D(4, 2, padding="same"))
        check(model, images(9, 3))

    @few
    @given(convolutions(2, most=5), st.sampled_from([SINGLE, PAIRS]), st.booleans())
    def test_transposed(self, convolution, groups, bias):
        size, options = convolution
        options["dilation_rate"] = 1  # TensorFlow knows no dilated transposed convolution on a CPU
        layer = layers.Conv2DTranspose(3, activation="tanh", use_bias=bias, **options)
        check(classifier((*size, 2), layer), images(*size, 2), groups=groups)

    @pytest.mark.parametrize("padding", ["same", "valid"])
    def test_transposed_of_one_and_three_dimensions(self, padding):
        check(classifier((4, 2), layers.Conv1DTranspose(3, 2, strides=3, padding=padding)), images(4, 2))
        layer = layers.Conv3DTranspose(3, 2, strides=2, padding=padding)
        check(classifier((2, 3, 2, 2), layer), images(2, 3, 2, 2))

    def test_output_padding(self):
        layer = layers.Conv2DTranspose(3, 3, strides=2, padding="same", output_padding=1)
        check(classifier((3, 4, 2), layer), images(3, 4, 2))


def reset_first(*args, **options):
    return layers.GRU(*args, reset_after=False, **options)


RECURRENT = [layers.SimpleRNN, layers.LSTM, layers.GRU, reset_first]
# A second or two each, and what they go through is the same code for all kinds.
ONE_QUICK = [pytest.param(kind, marks=[] if kind is layers.LSTM else pytest.mark.slow) for kind in RECURRENT]


class TestRecurrent:
    @pytest.mark.parametrize(("bias", "groups"), [(True, PAIRS), (False, SINGLE)], ids=["bias, s=2", "no bias, s=1"])
    @pytest.mark.parametrize("kind", RECURRENT)
    def test_sequences(self, kind, bias, groups):
        model = classifier((5, 3), kind(4, use_bias=bias, return_sequences=True), kind(2, go_backwards=True))
        check(model, images(5, 3), groups=groups)

    @pytest.mark.parametrize("zero", [True, pytest.param(False, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("kind", RECURRENT)
    def test_masked_steps(self, kind, zero):
        """pitfall 18: steps that Keras masks change neither norms nor sums."""
        x = images(5, 3)
        x[0, 3:], x[1, :2], x[2, 2] = 0, 0, 0
        recurrent = kind(4, return_sequences=True, zero_output_for_mask=zero)
        check(classifier((5, 3), layers.Masking(), recurrent, kind(2)), x)

    @pytest.mark.parametrize("kind", ONE_QUICK)
    def test_encoder_and_decoder(self, kind):
        inputs = keras.Input((5, 3))
        _, *states = kind(4, return_state=True)(inputs)
        model = keras.Model(inputs, layers.Dense(3)(kind(4)(inputs, initial_state=states)))
        check(perturbed(model), images(5, 3), groups=PAIRS)

    @pytest.mark.parametrize("kind", ONE_QUICK)
    def test_bidirectional(self, kind):
        model = classifier((5, 3), layers.Bidirectional(kind(4, return_sequences=True)), layers.Bidirectional(kind(2)))
        check(model, images(5, 3))


class TestNormalization:
    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize(
        ("shape", "options"),
        [
            ((4, 3, 6), {"groups": 3}),
            ((6,), {"groups": 2}),
            ((5, 6), {"groups": -1, "scale": False}),
            ((6, 5, 2), {"groups": 2, "axis": 1, "center": False}),
        ],
        ids=str,
    )
    def test_group(self, shape, options, groups):
        check(classifier(shape, layers.GroupNormalization(**options)), images(*shape), groups=groups)

    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize(
        ("shape", "options"),
        [
            ((6,), {}),
            ((5, 6), {"center": False}),
            ((4, 1, 3), {"axis": [1, 3], "scale": True}),
            ((4, 3), {"axis": 1}),
            ((4, 3), {"scale": False}),
        ],
        ids=str,
    )
    def test_layer(self, shape, options, groups):
        check(classifier(shape, layers.LayerNormalization(**options)), images(*shape), groups=groups)

    @pytest.mark.skipif(not hasattr(layers, "RMSNormalization"), reason="this Keras has none")
    @pytest.mark.parametrize("shape", [(6,), (5, 6)], ids=str)
    def test_rms(self, shape):
        check(classifier(shape, layers.RMSNormalization()), images(*shape), groups=PAIRS)


class TestEmbedding:
    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize("length", [6, 300])
    def test_repeated_indices(self, length, groups):
        """pitfall 15: an index used more than once in one example counts as the summed row."""
        x = np.random.default_rng(2).integers(0, 9, (4, length)).astype(np.int32)
        model = classifier((length,), layers.Embedding(9, 4), layers.Dense(2, "tanh"), dtype="int32")
        check(model, x, groups=groups)

    def test_negative_and_float_indices(self):
        x = np.array([[0, -1, 3], [-3, 2, 2], [1, 1, 1]], np.float32)
        check(classifier((3,), layers.Embedding(4, 5)), x)

    def test_masked_positions(self):
        """pitfall 18: positions that Keras masks change neither norms nor sums."""
        inputs = keras.Input((5,), dtype="int32")
        hidden = layers.Embedding(6, 4, mask_zero=True)(inputs)
        model = perturbed(keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden))))
        x = np.array([[1, 2, 0, 0, 0], [3, 0, 0, 0, 0], [4, 4, 5, 1, 0]], np.int32)
        check(model, x)

    def test_lora(self):
        embedding = layers.Embedding(6, 4)
        model = classifier((5,), embedding, dtype="int32")
        embedding.enable_lora(2)
        check(perturbed(model), np.random.default_rng(2).integers(0, 6, (4, 5)).astype(np.int32), groups=PAIRS)


@pytest.mark.skipif(not hasattr(layers, "ReversibleEmbedding"), reason="this Keras has none")
class TestReversibleEmbedding:
    """pitfall 15: both uses of a tied table count, cross terms included."""

    @staticmethod
    def language_model(size, length, width, **options):
        inputs = keras.Input((length,), dtype="int32")
        embedding = layers.ReversibleEmbedding(size, width, **options)
        hidden = layers.Dense(width, "tanh")(embedding(inputs))
        keras.utils.set_random_seed(5)
        return embedding, perturbed(keras.Model(inputs, embedding(hidden, reverse=True)))

    @staticmethod
    def tokens(size, length, n=4):
        """(inputs, the tokens after them), some of them repeated."""
        x = np.random.default_rng(2).integers(0, size, (n, length + 1)).astype(np.int32)
        return x[:, :-1], x[:, 1:]

    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize("tie", [True, False])
    @pytest.mark.parametrize(("size", "length", "width"), [(7, 12, 3), (300, 5, 40)], ids=["made", "not made"])
    def test_tokens_to_logits(self, size, length, width, tie, groups):
        _, model = self.language_model(size, length, width, tie_weights=tie)
        assert len(model.trainable_variables) == (3 if tie else 4)
        check(model, *self.tokens(size, length), groups=groups, loss=Tokens())

    def test_a_large_tied_table_is_not_made(self, monkeypatch):
        used = []
        original = rules.embedding.Tied
        monkeypatch.setattr(rules.embedding, "Tied", lambda *a: used.append(a) or original(*a))
        _, model = self.language_model(300, 5, 40)
        check(model, *self.tokens(300, 5), loss=Tokens())
        assert len(used) == 1

    @pytest.mark.parametrize(("size", "width"), [(7, 3), (300, 40)], ids=str)
    @pytest.mark.parametrize("tie", [True, False])
    def test_lora(self, tie, size, width):
        embedding, model = self.language_model(size, 5, width, tie_weights=tie)
        embedding.enable_lora(2)
        check(perturbed(model), *self.tokens(size, 5), groups=PAIRS, loss=Tokens())

    def test_options(self):
        _, model = self.language_model(300, 5, 40, mask_zero=True, logit_soft_cap=3.0, reverse_dtype="float32")
        x, y = self.tokens(300, 5)
        x[0, 2:] = 0
        check(model, x, y, loss=Tokens())

    @pytest.mark.parametrize("size", [7, 300])
    def test_more_uses_and_only_one(self, size):
        embedding = layers.ReversibleEmbedding(size, 40)
        first, second = keras.Input((5,), dtype="int32"), keras.Input((3,), dtype="int32")
        inner = layers.Dense(40, "tanh")
        logits = [embedding(inner(embedding(t)), reverse=True) for t in (first, second)]
        model = perturbed(keras.Model([first, second], layers.Concatenate(1)(logits)))
        x, y = self.tokens(size, 8)
        check(model, [x[:, :5], x[:, 5:]], y, groups=PAIRS, loss=Tokens())
        inputs = keras.Input((2, 4))
        backward = layers.ReversibleEmbedding(size, 4)
        backward.build()
        check(perturbed(keras.Model(inputs, backward(inputs, reverse=True))), images(2, 4), y[:, :2], loss=Tokens())


class Tokens(keras.losses.Loss):
    """The mean over positions of the cross-entropy."""

    def call(self, y, outputs):
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True), -1)


class TestEinsumDense:
    @pytest.mark.parametrize("lora", [False, True], ids=["", "LoRA"])
    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize(
        ("equation", "shape", "output", "bias"),
        [
            ("ab,bc->ac", (5,), 4, "c"),
            ("abc,cd->abd", (3, 5), (3, 4), "d"),
            ("abc,cde->abde", (3, 5), (3, 2, 4), "de"),
            ("abcd,cde->abe", (3, 2, 4), (3, 5), "e"),
            ("abc,bcd->abd", (3, 5), (3, 4), "bd"),
            ("abc,dcb->adb", (3, 5), (4, 3), "b"),
            ("...x,xy->...y", (3, 5), 4, None),
            ("abcd,edc->abe", (3, 2, 4), (3, 5), "e"),
            ("abc,cdb->abd", (3, 5), (3, 4), "bd"),
        ],
    )
    def test_equations(self, equation, shape, output, bias, groups, lora):
        layer = layers.EinsumDense(equation, output, bias_axes=bias, activation="tanh")
        model = classifier(shape, layer)
        if lora:
            layer.enable_lora(2, lora_alpha=3)
            perturbed(model)
        check(model, images(*shape), groups=groups)

    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    def test_attention(self, groups):
        inputs = keras.Input((5, 6))
        attended = layers.MultiHeadAttention(2, 3)(inputs, inputs)
        model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(attended)))
        check(perturbed(model), images(5, 6), groups=groups)

    def test_attention_with_lora(self):
        inputs = keras.Input((5, 6))
        attention = layers.MultiHeadAttention(2, 3)
        model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(attention(inputs, inputs))))
        for name in ("query", "key", "value", "output"):
            getattr(attention, f"_{name}_dense").enable_lora(2)
        assert len(model.trainable_variables) == 2 * 4 + 4 + 2
        check(perturbed(model), images(5, 6), groups=PAIRS)

    def test_grouped_query_attention(self):
        inputs = keras.Input((5, 6))
        kind = getattr(layers, "GroupQueryAttention", None) or layers.GroupedQueryAttention
        model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(kind(3, 4, 2)(inputs, inputs))))
        check(perturbed(model), images(5, 6))


class TestTimeDistributed:
    @pytest.mark.parametrize("groups", [SINGLE, PAIRS], ids=["s=1", "s=2"])
    @pytest.mark.parametrize(
        ("shape", "layer"),
        [
            ((4, 5), lambda: layers.Dense(3, "tanh")),
            ((3, 6, 5, 2), lambda: layers.Conv2D(4, 3, activation="tanh")),
            ((3, 4, 4), lambda: layers.LayerNormalization()),
            ((3, 4, 4), lambda: layers.GroupNormalization(2)),
            ((3, 2, 4), lambda: layers.EinsumDense("abc,cd->abd", (2, 3), bias_axes="d")),
            ((3, 5, 4, 2), lambda: layers.SeparableConv2D(3, 2)),
        ],
        ids=["Dense", "Conv2D", "LayerNormalization", "GroupNormalization", "EinsumDense", "SeparableConv2D"],
    )
    def test_layers(self, shape, layer, groups):
        check(classifier(shape, layers.TimeDistributed(layer())), images(*shape), groups=groups)

    def test_a_net_over_the_frames_of_a_video(self):
        each = layers.TimeDistributed
        frozen = layers.Dense(4, trainable=False)
        model = classifier(
            (3, 6, 6, 2),
            each(layers.Conv2D(3, 3, activation="tanh")),
            each(layers.MaxPooling2D()),
            each(layers.Flatten()),
            each(frozen),
            layers.LSTM(4),
        )
        check(model, images(3, 6, 6, 2), groups=PAIRS)

    def test_masked_steps_and_other_uses_of_the_layer(self):
        dense, inputs = layers.Dense(5, "tanh"), keras.Input((4, 5))
        hidden = layers.TimeDistributed(dense)(layers.Masking()(inputs))
        hidden = layers.GlobalAveragePooling1D()(dense(hidden))
        x = images(4, 5)
        x[0, 2:], x[1, 1] = 0, 0
        check(perturbed(keras.Model(inputs, layers.Dense(3)(hidden))), x, groups=PAIRS)

    @pytest.mark.parametrize(
        ("layer", "words"),
        [
            (lambda: layers.LSTM(3), "TimeDistributed.*wraps LSTM"),
            (lambda: keras.Sequential([layers.Dense(3)]), "TimeDistributed.*wraps Sequential"),
            (lambda: layers.Dense(3, kernel_regularizer="l2"), "Dense.*regularizer"),
            (lambda: layers.Dense(3, lambda x: x), "Dense.*activation"),
            (lambda: layers.BatchNormalization(), "TimeDistributed.*wraps BatchNormalization"),
            (lambda: layers.Softmax(axis=0), "Softmax"),
        ],
        ids=["LSTM", "a model", "a regularizer", "an activation", "batch normalisation", "rows"],
    )
    def test_refused_by_name(self, layer, words):
        model = classifier((3, 4, 5), layers.TimeDistributed(layer()))
        assert any(re.search(words, reason) for reason in unsupported(model, BatchGradient()))


class TestPReLU:
    @pytest.mark.parametrize("shared", [None, [1], [1, 2]], ids=str)
    def test_shared_axes(self, shared):
        check(classifier((3, 4, 2), layers.PReLU(shared_axes=shared)), images(3, 4, 2), groups=PAIRS)


def test_layer_scale():
    from keras.src.applications.convnext import LayerScale

    check(classifier((3, 4, 2), LayerScale(0.5, 2)), images(3, 4, 2), groups=PAIRS)


class TestSharedAndFrozen:
    def test_shared_layers_sum_their_uses(self):
        """pitfall 15: cross terms included, whatever form each use's gradients take."""
        inputs = keras.Input((6, 6, 3))
        convolution, dense = layers.Conv2D(3, 3, padding="same", activation="tanh"), layers.Dense(3, "tanh")
        norm = layers.LayerNormalization()
        once = norm(dense(convolution(inputs)))
        twice = norm(dense(convolution(layers.AveragePooling2D(2)(convolution(once)))))
        model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(twice)))
        check(perturbed(model), images(6, 6, 3))
        check(model, images(6, 6, 3), groups=PAIRS)

    def test_a_shared_embedding(self):
        first, second = keras.Input((4,), dtype="int32"), keras.Input((2,), dtype="int32")
        table = layers.Embedding(5, 3)
        joined = layers.Concatenate(1)([table(first), table(second)])
        model = perturbed(keras.Model([first, second], layers.Dense(3)(layers.Flatten()(joined))))
        rng = np.random.default_rng(3)
        x = [rng.integers(0, 5, (4, 4)).astype(np.int32), rng.integers(0, 5, (4, 2)).astype(np.int32)]
        check(model, x, groups=PAIRS)

    def test_frozen_layers_and_weights_have_no_gradient(self):
        """pitfall 6: what is frozen takes no part."""
        frozen, partly = layers.Dense(5, "tanh"), layers.Dense(4, "tanh")
        model = classifier((6,), frozen, layers.BatchNormalization(trainable=False), partly)
        frozen.trainable = False
        partly.bias.trainable = False
        assert len(model.trainable_variables) == 3
        check(model, images(6))

    def test_nested_models(self):
        inner = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(5)])
        inputs = keras.Input((5,))
        model = keras.Model(inputs, layers.Dense(3)(layers.Add()([inputs, inner(inner(inputs))])))
        check(perturbed(model), images(5), groups=PAIRS)

    def test_several_inputs_and_outputs(self):
        image, vector = keras.Input((4, 4, 1), name="image"), keras.Input((3,), name="vector")
        hidden = layers.Concatenate()([layers.Flatten()(layers.Conv2D(2, 3)(image)), layers.Dense(2, "tanh")(vector)])
        outputs = {"a": layers.Dense(3, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)}
        model = perturbed(keras.Model({"image": image, "vector": vector}, outputs))
        x = {"image": images(4, 4, 1), "vector": images(3)}
        y = {"a": np.arange(4) % 3, "b": images(1)}

        def gradient(group):
            with tf.GradientTape() as tape:
                out, target = model(gather(x, group), training=True), gather(y, group)
                squared = keras.losses.mean_squared_error(target["b"], out["b"])
                value = tf.reduce_mean(oracles.LOSS.call(target["a"], out["a"]) + squared)
            return oracles.flat(tape.gradient(value, model.trainable_variables))

        norms, total, _ = onepass(
            model,
            x,
            y,
            PAIRS,
            [1, 1],
            loss={"a": oracles.LOSS, "b": "mse"},
            blocks=[0] * len(model.trainable_variables),
        )
        each = [gradient(g) for g in PAIRS]
        np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(g) for g in each], rtol=1e-5)
        np.testing.assert_allclose(oracles.flat(total), sum(each), atol=1e-5 * np.linalg.norm(sum(each)))


# (shape of a row, layer with a given policy) for each layer that has a rule.
IN_EVERY_PRECISION = {
    "Conv1D": ((6, 3), lambda **o: layers.Conv1D(4, 3, activation="tanh", **o)),
    "Conv1DTranspose": ((4, 3), lambda **o: layers.Conv1DTranspose(3, 2, **o)),
    "Conv2D": ((6, 6, 4), lambda **o: layers.Conv2D(4, 3, activation="tanh", **o)),
    "Conv2DTranspose": ((3, 3, 2), lambda **o: layers.Conv2DTranspose(3, 2, **o)),
    "Conv3D": ((3, 3, 3, 2), lambda **o: layers.Conv3D(3, 2, **o)),
    "Conv3DTranspose": ((2, 2, 2, 2), lambda **o: layers.Conv3DTranspose(3, 2, **o)),
    "Dense": ((3, 5), lambda **o: layers.Dense(4, "tanh", **o)),
    "DepthwiseConv1D": ((6, 3), lambda **o: layers.DepthwiseConv1D(3, **o)),
    "DepthwiseConv2D": ((5, 5, 3), lambda **o: layers.DepthwiseConv2D(3, **o)),
    "EinsumDense": ((3, 5), lambda **o: layers.EinsumDense("abc,cd->abd", (3, 4), bias_axes="d", **o)),
    "Embedding": ((6,), lambda **o: layers.Embedding(9, 4, **o)),
    "GRU": ((4, 3), lambda **o: layers.GRU(4, **o)),
    "GroupNormalization": ((4, 3, 6), lambda **o: layers.GroupNormalization(3, **o)),
    "LSTM": ((4, 3), lambda **o: layers.LSTM(4, **o)),
    "LayerNormalization": ((5, 6), lambda **o: layers.LayerNormalization(**o)),
    "LayerScale": ((5, 6), lambda **o: applications.LayerScale(0.5, 6, **o)),
    "PReLU": ((3, 4), lambda **o: layers.PReLU(**o)),
    "RMSNormalization": ((5, 6), lambda **o: layers.RMSNormalization(**o)),
    "ReversibleEmbedding": ((6,), lambda **o: layers.ReversibleEmbedding(9, 4, **o)),
    "SeparableConv1D": ((6, 3), lambda **o: layers.SeparableConv1D(4, 3, **o)),
    "SeparableConv2D": ((5, 5, 3), lambda **o: layers.SeparableConv2D(4, 3, **o)),
    "SimpleRNN": ((4, 3), lambda **o: layers.SimpleRNN(4, **o)),
    "TimeDistributed": ((3, 4), lambda **o: layers.TimeDistributed(layers.Dense(3, **o), **o)),
}
# The loop rounds in other places: in float16 to 11 bits, in bfloat16 to 8.
ROUNDING = {"mixed_float16": 1e-2, "mixed_bfloat16": 8e-2}


def in_precision(name, policy):
    """(model, its inputs) of one layer in a precision."""
    shape, layer = IN_EVERY_PRECISION[name]
    if "Embedding" not in name:
        return classifier(shape, layer(dtype=policy)), images(*shape)
    inputs = keras.Input(shape, dtype="int32")
    table = layer(dtype=policy)
    hidden = table(inputs)
    hidden = table(hidden, reverse=True) if name == "ReversibleEmbedding" else hidden
    x = np.random.default_rng(2).integers(0, 9, (4, *shape)).astype(np.int32)
    keras.utils.set_random_seed(5)
    return perturbed(keras.Model(inputs, layers.Dense(3)(layers.Flatten()(hidden)))), x


# float16 has the narrow range that norms must survive. The quick suite runs some of the rules only, for each is a model to trace.
QUICK = {"Dense", "Conv2D", "Embedding", "LSTM", "LayerNormalization"}
CASES = [
    pytest.param(
        name,
        policy,
        marks=[] if name in QUICK else pytest.mark.slow,
        id=f"{name}-{policy}",
    )
    for name in IN_EVERY_PRECISION
    for policy in ROUNDING
]


@pytest.mark.parametrize(("name", "policy"), CASES)
def test_every_rule_works_in_mixed_precision_with_norms_in_float32(name, policy):
    """pitfall 7: float16 gradients do not overflow the norm, although the squares of numbers above 256 would."""
    model, x = in_precision(name, policy)
    check(model, x, groups=PAIRS, tolerance=ROUNDING[policy])
    norms, total, _ = onepass(model, x, np.arange(4) % 3, SINGLE, [1] * 4)
    assert norms.dtype == np.float32
    assert all(t.dtype == np.float32 for t in total)
    large, _, _ = onepass(model, x, np.arange(4) % 3, SINGLE, [1] * 4, loss=Magnified())
    assert large[:, :-2].max() > 256  # of the layer itself
    np.testing.assert_allclose(large, 2048 * norms, rtol=1e-3, atol=1e-2)


class Magnified(keras.losses.Loss):
    def call(self, y, outputs):
        return 2048 * oracles.LOSS.call(y, outputs)


def test_every_rule_is_among_those_tested_in_every_precision():
    kinds = {kind.__name__ for kind in registered() if kind.__module__.startswith("keras.")}
    assert kinds == set(IN_EVERY_PRECISION)
