"""Every form of per-contribution gradients gives the norms and sums of the gradients themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdpbc.gradients.onepass.rules.conv2d import Geometry, PixelGram
from tfdpbc.gradients.onepass.rules.embedding import Lookup, Projection, Tied
from tfdpbc.gradients.onepass.terms import Materialized, Outer, gram_is_cheaper, merged, trusted

K = 5


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def outer(positions, p, q, groups=()):
    def make(d_scale):
        a, d = normal(K, *groups, positions, p), normal(K, *groups, positions, q, seed=1)
        return Outer(tf.constant(a), tf.constant(d * d_scale.reshape(-1, *[1] * (d.ndim - 1))), lambda g: g)

    return make, (*groups, p, q)


def lookup(positions, q):
    def make(d_scale):
        indices = np.random.default_rng(2).integers(0, 7, (K, positions)).astype(np.int32)
        d = normal(K, positions, q, seed=1) * d_scale[:, None, None]
        return Lookup(tf.constant(indices), tf.constant(d), (7, q))

    return make, (7, q)


def tied(d_scale):
    table, _ = lookup(6, 30)
    reads = table(d_scale)
    reads = Lookup(reads.indices % 4, reads.d, (50, 30))
    scaled = normal(K, 3, 50, seed=3) * d_scale[:, None, None]
    return Tied(reads, Projection(tf.constant(scaled), tf.constant(normal(K, 3, 30, seed=4))))


def pixels(d_scale):
    layer = SimpleNamespace(kernel_size=(3, 3), strides=(1, 1), padding="same")
    x, d = tf.constant(normal(K, 4, 4, 2)), tf.constant(normal(K, 4, 4, 3, seed=1) * d_scale[:, None, None, None])
    return PixelGram(Geometry(layer, x, d), x, d)


def pieces(d_scale):
    halves = [normal(K, 2, 3, seed=i) * d_scale[:, None, None] for i in range(2)]
    return Materialized(halves, lambda parts: tf.concat(parts, 1))


FORMS = {
    "one position": outer(1, 4, 3),
    "Gram matrix": outer(3, 20, 30),
    "gradient": outer(50, 4, 3),
    "groups, one position": outer(1, 4, 3, (2,)),
    "groups, Gram matrix": outer(3, 20, 30, (2,)),
    "groups, gradient": outer(50, 4, 3, (2,)),
    "few look-ups": lookup(4, 6),
    "many look-ups": lookup(400, 6),
    "tied": (tied, (50, 30)),
    "pixels": (pixels, (3, 3, 2, 3)),
    "pieces": (pieces, (4, 3)),
}


@pytest.mark.parametrize("form", FORMS)
def test_norms_and_sums_are_those_of_the_gradients(form):
    make, shape = FORMS[form]
    term = make(np.ones(K, np.float32))
    gradients = np.float64(term.materialized())
    assert gradients.shape == (K, *shape)
    np.testing.assert_allclose(term.squares, (gradients.reshape(K, -1) ** 2).sum(1), rtol=1e-5)
    weights = np.linspace(0, 2, K).astype(np.float32)
    want = np.tensordot(weights, gradients, 1)
    np.testing.assert_allclose(term.weighted_sum(tf.constant(weights)), want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_shows_in_its_norm_and_can_be_taken_out(form, bad):
    """pitfall 13: one NaN or inf example gives the sum of the others."""
    make, _ = FORMS[form]
    scale = np.ones(K, np.float32)
    clean = make(scale)
    scale[2] = bad
    term = make(scale)
    finite = np.isfinite(term.squares)
    assert finite.tolist() == [True, True, False, True, True]
    weights = np.linspace(0.5, 2, K).astype(np.float32)
    weights[2] = 0
    want = clean.weighted_sum(tf.constant(weights)).numpy()
    got = term.weighted_sum(tf.constant(weights), tf.constant(finite))
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("forms", [("gradient", "gradient"), ("few look-ups",) * 2, ("pixels",) * 3, ("pieces",) * 2])
def test_merged_terms_are_sums(forms):
    """pitfall 15: cross terms included."""
    terms = [FORMS[form][0](np.full(K, i + 1.0, np.float32)) for i, form in enumerate(forms)]
    shape = FORMS[forms[0]][1]
    gradients = sum(np.float64(t.materialized()) for t in terms)
    together = merged(terms, shape)
    np.testing.assert_allclose(together.squares, (gradients.reshape(K, -1) ** 2).sum(1), rtol=1e-5)


def test_terms_of_different_forms_merge_too():
    table, dense = (
        FORMS["few look-ups"][0](np.ones(K, np.float32)),
        Outer(normal(K, 3, 7), normal(K, 3, 6), lambda g: g),
    )
    gradients = np.float64(table.materialized()) + np.float64(dense.materialized())
    for terms in ([table, dense], [dense, table]):
        np.testing.assert_allclose(merged(terms, (7, 6)).squares, (gradients.reshape(K, -1) ** 2).sum(1), rtol=1e-5)


def test_a_read_that_undoes_a_projection_leaves_its_own_norm():
    """The norm of what is left is exact, although each use alone is 10^4 times larger."""
    d, inputs = np.zeros((1, 1, 50), np.float32), normal(1, 1, 30)
    d[0, 0, 7], d[0, 0, 8] = 1e4, 1.0
    reads = Lookup(tf.constant([[7]]), tf.constant(-1e4 * inputs), (50, 30))
    left = np.sum(np.float64(inputs) ** 2)
    np.testing.assert_allclose(merged([reads, Projection(d, inputs)], (50, 30)).squares, [left], rtol=1e-6)


def test_the_forms_above_are_those_they_are_named_after():
    assert gram_is_cheaper(3, 20, 30) and not gram_is_cheaper(50, 4, 3)


@pytest.mark.parametrize("exponent", [-37, -30, -22, -19, -10, 10, 19, 22, 30, 37])
@pytest.mark.parametrize("form", ["one position", "Gram matrix", "gradient", "groups, Gram matrix", "pixels"])
def test_no_factor_is_too_small_or_large_for_the_norm(form, exponent):
    """Products that vanish in one factor's Gram matrix may be made up for by the other factor: a norm of 0 would let its
    contribution through unclipped. Only some rows are so, and only part of what they hold."""
    few = np.where(np.arange(K) < 2, 10.0**exponent, 1.0).astype(np.float32)
    if form == "pixels":
        layer = SimpleNamespace(kernel_size=(3, 3), strides=(1, 1), padding="same")
        x, d = normal(K, 4, 4, 2), normal(K, 4, 4, 3, seed=1)
        x[:, :2] *= few[:, None, None, None]
        d[:, :2] /= few[:, None, None, None]
        term = PixelGram(Geometry(layer, x, d), tf.constant(x), tf.constant(d))
    else:
        like = FORMS[form][0](np.ones(K, np.float32))
        a, d = like.a.numpy(), like.d.numpy()
        half = (slice(None), ..., slice(0, max(1, a.shape[-2] // 2)), slice(None))
        a[half] *= few.reshape(-1, *[1] * (a.ndim - 1))
        d[half] /= few.reshape(-1, *[1] * (a.ndim - 1))
        term = Outer(tf.constant(a), tf.constant(d), lambda g: g)
    true = np.sum(np.float64(term.materialized()).reshape(K, -1) ** 2, 1)
    squares = term.squares.numpy()
    assert np.all(~np.isfinite(squares) | (squares >= true * (1 - 1e-2)))
    np.testing.assert_allclose(squares[2:], true[2:], rtol=1e-5)


def test_squares_that_cancel_or_overflow_are_computed_again_and_nan_stays():
    def squares(value, absolute):
        return trusted(tf.constant([value, 2.0]), tf.constant([absolute, 2.0]), lambda: tf.constant([7.0, 2.0])).numpy()

    for value, absolute in ((-1e-9, 1.0), (1e-3, 1.0), (-np.inf, np.inf), (1.0, np.inf)):
        np.testing.assert_array_equal(squares(value, absolute), [7, 2])
    for value, absolute in ((0.5, 1.0), (0.0, 0.0), (np.nan, np.nan), (np.inf, np.inf)):
        np.testing.assert_array_equal(squares(value, absolute), [value, 2])
