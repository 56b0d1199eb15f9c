"""The images' augmentation: each image on its own, the stated distribution, the very pixels."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tfdpbc as dp

sizes = st.integers(1, 7)


def seeds(n, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, (n, 2), endpoint=True)


def images(n, height, width, channels, dtype="float32", seed=0):
    return np.random.default_rng(seed).integers(1, 200, (n, height, width, channels)).astype(dtype)


def plain(image, pad, down, right, mirrored, margin):
    """One image, by numpy: margin, crop, flip."""
    wide = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), {"zeros": "constant", "reflect": "reflect"}[margin])
    cut = wide[down : down + image.shape[0], right : right + image.shape[1]]
    return cut[:, ::-1] if mirrored else cut


def outcomes(image, pad, flip, margin):
    return {
        (down, right, mirrored): plain(image, pad, down, right, mirrored, margin)
        for down in range(2 * pad + 1)
        for right in range(2 * pad + 1)
        for mirrored in ((False, True) if flip else (False,))
    }


@settings(max_examples=25, deadline=None)
@given(
    *(sizes, sizes, sizes, st.integers(1, 3), st.integers(0, 5), st.booleans(), st.sampled_from(["zeros", "reflect"])),
    st.sampled_from(["float32", "uint8", "float64"]),
)
def test_each_image_becomes_one_of_its_own_shifts(n, height, width, channels, pad, flip, margin, dtype):
    if margin == "reflect":
        pad = min(pad, height - 1, width - 1)
    x = images(n, height, width, channels, dtype)
    changed = np.asarray(dp.data.Augmentation(pad, flip, margin)(tf.constant(x), tf.constant(seeds(n))))
    assert changed.dtype == x.dtype and changed.shape == x.shape
    for image, new in zip(x, changed, strict=True):
        assert any(np.array_equal(new, wanted) for wanted in outcomes(image, pad, flip, margin).values())


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), sizes, sizes, st.integers(1, 3), st.integers(0, 4), st.data())
def test_rows_do_not_mix(n, height, width, channels, pad, data):
    """One image and its seed replaced, by what spreads as far as it can: no other image changes."""
    row = data.draw(st.integers(0, n - 1))
    augment, x, keys = dp.data.Augmentation(pad), images(n, height, width, channels), seeds(n)
    before = np.asarray(augment(tf.constant(x), tf.constant(keys)))
    x[row] = data.draw(st.sampled_from([np.nan, np.inf, 1e6]))
    keys[row] = seeds(1, 9)[0]
    after = np.asarray(augment(tf.constant(x), tf.constant(keys)))
    others = np.arange(n) != row
    np.testing.assert_array_equal(after[others], before[others])
    # What happens to a row does not depend on where it stands either.
    order = np.random.default_rng(1).permutation(n)
    moved = augment(tf.constant(x[order]), tf.constant(keys[order]))
    np.testing.assert_array_equal(np.asarray(moved), after[order])


def test_shifts_and_flips_are_uniform_and_independent():
    """All 7 x 7 x 2 outcomes of 49,000 copies of one image, 500 of each expected: a chi-squared test that fails by
    chance once in 10^7."""
    n, pad = 49_000, 3
    image = images(1, 5, 4, 1)[0]
    wanted = {new.tobytes(): i for i, new in enumerate(outcomes(image, pad, True, "zeros").values())}
    assert len(wanted) == 98
    x = np.broadcast_to(image, (n, *image.shape))
    changed = np.asarray(dp.data.Augmentation(pad)(tf.constant(x), tf.constant(seeds(n))))
    counts = np.bincount([wanted[new.tobytes()] for new in changed], minlength=98)
    assert stats.chisquare(counts).pvalue > 1e-7


def test_the_defaults_are_those_of_paper_b():
    assert dp.data.Augmentation() == dp.data.Augmentation(pad=4, flip=True, margin="zeros")


def test_it_comes_back_from_its_config():
    augment = dp.data.Augmentation(2, False, "reflect")
    assert dp.data.Augmentation(**augment.to_config()) == augment


def test_it_does_the_same_in_a_graph_with_xla_and_on_batches_of_any_size():
    augment, x, keys = dp.data.Augmentation(), tf.constant(images(9, 8, 6, 3)), tf.constant(seeds(9))
    eager = augment(x, keys)
    spec = [tf.TensorSpec([None, 8, 6, 3]), tf.TensorSpec([None, 2], tf.int64)]
    np.testing.assert_array_equal(tf.function(augment, input_signature=spec)(x, keys), eager)
    np.testing.assert_array_equal(tf.function(augment, jit_compile=True)(x, keys), eager)


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({"pad": -1}, ValueError, "pad must be an integer >= 0; got pad=-1"),
        ({"pad": 1.5}, TypeError, "pad must be an integer"),
        ({"flip": 1}, TypeError, "flip must be True or False"),
        ({"margin": "edge"}, ValueError, "margin must be one of 'zeros', 'reflect'"),
    ],
)
def test_impossible_fields(fields, error, message):
    with pytest.raises(error, match=message):
        dp.data.Augmentation(**fields)


@pytest.mark.parametrize(
    "x, message",
    [
        (np.zeros((3, 8)), "augment must be a function of one example"),
        ({"image": np.zeros((3, 8, 8, 1))}, "augment must be a function of one example"),
        (np.zeros((3, 4, 8, 1)), "pad must be less than the images' sides"),
    ],
)
def test_inputs_that_are_not_images(x, message):
    with pytest.raises(ValueError, match=message):
        dp.data.Augmentation(margin="reflect").check(x)
