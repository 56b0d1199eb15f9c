"""The built-in data set: reproducible, balanced, as hard as promised."""

import numpy as np
import pytest
from scipy import stats

from tfdpbc.data import glyphs


@pytest.fixture(scope="module")
def sample():
    return glyphs.generate("train", num_examples=12_000), glyphs.generate("test", num_examples=3_000)


def test_form(sample):
    (x, y), _ = sample
    assert x.shape == (12_000, 28, 28, 1) and x.dtype == np.uint8
    assert y.shape == (12_000,) and y.dtype == np.int64
    assert x.min() == 0 and x.max() > 230
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)  # no image twice


def test_digits_fill_the_middle(sample):
    mean = sample[0][0].mean(0)[..., 0]
    border = np.concatenate([mean[:2].ravel(), mean[-2:].ravel(), mean[:, :2].ravel(), mean[:, -2:].ravel()])
    assert mean[8:20, 8:20].mean() > 4 * border.mean()


def test_labels_are_uniform(sample):
    for _, y in sample:
        # False alarm 1e-7 for a uniform law.
        assert stats.chisquare(np.bincount(y, minlength=10)).pvalue > 1e-7


def test_reproducible_and_independent():
    x, y = glyphs.generate("train", seed=3, num_examples=600)
    again, labels = glyphs.generate("train", seed=3, num_examples=1_100)  # a prefix, whatever follows
    np.testing.assert_array_equal(x, again[:600])
    np.testing.assert_array_equal(y, labels[:600])
    for other in (
        glyphs.generate("train", seed=4, num_examples=600),
        glyphs.generate("test", seed=3, num_examples=600),
    ):
        assert not np.array_equal(y, other[1])
        assert not (x == other[0]).all((1, 2, 3)).any()


def test_images_are_those_of_this_version():
    """Whoever changes the images must raise VERSION (old caches would live on) and these numbers with it."""
    x, y = glyphs.generate("test", num_examples=500)
    assert glyphs.VERSION == 1
    np.testing.assert_array_equal(y[:10], [8, 8, 2, 8, 3, 7, 5, 6, 7, 4])
    # Loose enough for another processor's rounding, tight enough for any change of a parameter.
    assert x.mean() == pytest.approx(42.240, abs=0.01) and x.std() == pytest.approx(69.790, abs=0.01)


def test_ink_of_a_straight_stroke():
    """Against the closed form: a Gaussian across, a difference of normal distribution functions along."""
    n, length, width = 81, 16.0, 1.1
    t = np.linspace(5, 5 + length, n, dtype=np.float32)
    points = np.stack([t, np.full(n, 13.3, np.float32)], -1)[None]
    step = np.full([1, n], length / n, np.float32)
    ink = glyphs._splat(points, step, np.full([1, n], width, np.float32))[0]
    along = np.arange(28)
    profile = stats.norm.cdf((along - 5) / width) - stats.norm.cdf((along - 5 - length) / width)
    across = np.exp(-0.5 * ((np.arange(28) - 13.3) / width) ** 2)
    np.testing.assert_allclose(ink, across[:, None] * profile, atol=0.03)


def test_load_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDPBC_CACHE", str(tmp_path))
    x, y = glyphs.load("test")
    assert x.shape == (10_000, 28, 28, 1)
    monkeypatch.setattr(glyphs, "generate", None)  # a second drawing would fail
    again, labels = glyphs.load("test")
    np.testing.assert_array_equal(x, again)
    np.testing.assert_array_equal(y, labels)


@pytest.mark.parametrize("arguments", [{"split": "valid"}, {"seed": -1}, {"num_examples": 0}])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="must be"):
        glyphs.generate(**arguments)


def accuracy(model, train, test, epochs, batch_size, learning_rate):
    import keras

    keras.utils.set_random_seed(0)
    (x, y), (xt, yt) = ((images / np.float32(255), labels) for images, labels in (train, test))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, epochs * -(-len(x) // batch_size))
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)
    return model.evaluate(xt, yt, batch_size=1000, verbose=0)[1]


def test_linear_model_on_a_part(sample):
    from tfdpbc import models

    got = accuracy(models.mlp((28, 28, 1), 10, units=(), seed=0), *sample, 8, 128, 3e-3)
    assert 0.75 < got < 0.93


@pytest.mark.slow
def test_difficulty():
    from tfdpbc import models

    data = glyphs.generate("train"), glyphs.generate("test")
    assert accuracy(models.mlp((28, 28, 1), 10, units=(), seed=0), *data, 12, 256, 3e-3) < 0.93
    assert accuracy(models.tutorial_cnn((28, 28, 1), 10, seed=0), *data, 4, 64, 2e-3) > 0.98
