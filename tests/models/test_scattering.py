"""Scattering against a direct sum over pixels, its symmetries, and the networks on top of it."""

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tfdpbc import models
from tfdpbc.algorithms import BatchGradient
from tfdpbc.export import load_exported
from tfdpbc.gradients.onepass import unsupported
from tfdpbc.models import _wavelets
from tfdpbc.models.scattering_layer import Scattering2D


def gaussian(y, x, sigma, angle=0.0, slant=1.0, frequency=0.0):
    """Written from the definition, independent of the package: positions are relative to the centre."""
    along, across = np.cos(angle) * y + np.sin(angle) * x, np.cos(angle) * x - np.sin(angle) * y
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * np.pi * sigma**2)
    return envelope * np.exp(1j * frequency * along)


def periodic(shape, **options):
    """A filter on a torus, by adding its copies."""
    y, x = np.indices(shape, float)
    shifts = range(-2, 3)
    return sum(gaussian(y + i * shape[0], x + k * shape[1], **options) for i in shifts for k in shifts)


def convolved(signal, kernel):
    """Periodic convolution as a sum of shifted copies."""
    total = np.zeros(signal.shape, complex)
    for i, k in np.ndindex(signal.shape):
        total += signal[i, k] * np.roll(kernel, (i, k), (0, 1))
    return total


def wavelet(shape, j, k, orientations):
    options = {"sigma": 0.8 * 2**j, "angle": (orientations // 2 - 1 - k) * np.pi / orientations}
    options["slant"] = 4 / orientations
    wave, plain = periodic(shape, frequency=0.75 * np.pi / 2**j, **options), periodic(shape, **options)
    return wave - plain * wave.sum() / plain.sum()


def direct(image, orientations):
    """Scattering of J = 2 of one channel by sums over pixels, ``[h // 4, w // 4, F]``."""
    padded = [((n + 4) // 4 + 1) * 4 for n in image.shape]
    before = [(p - n) // 2 for p, n in zip(padded, image.shape, strict=True)]
    margins = [(b, p - n - b) for b, p, n in zip(before, padded, image.shape, strict=True)]
    x = np.pad(image, margins, mode="reflect")
    kept = [slice(1, 1 + n // 4) for n in image.shape]
    fine = periodic(x.shape, sigma=1.6)
    half = 4 * fine[::2, ::2]  # the same blur for signals at every second pixel
    first, second, blurred = [], [], convolved(x, fine)[::4, ::4]
    for k in range(orientations):
        u = np.abs(convolved(x, wavelet(x.shape, 0, k, orientations)))
        first.append(convolved(u, fine)[::4, ::4])
        for other in range(orientations):
            v = np.abs(convolved(u, wavelet(x.shape, 1, other, orientations))[::2, ::2])
            second.append(convolved(v, half)[::2, ::2])
    for k in range(orientations):
        u = np.abs(convolved(x, wavelet(x.shape, 1, k, orientations))[::2, ::2])
        first.append(convolved(u, half)[::2, ::2])
    return np.stack([blurred, *first, *second], -1)[kept[0], kept[1]].real


@pytest.mark.parametrize(("shape", "orientations"), [((8, 12), 2), ((9, 8), 4)])
def test_against_direct_sums(shape, orientations):
    image = np.random.default_rng(0).random((*shape, 2))
    got = Scattering2D(2, orientations)(image[None].astype(np.float32)).numpy()[0]
    expected = np.concatenate([direct(image[..., c], orientations) for c in range(2)], -1)
    assert got.shape == expected.shape == (shape[0] // 4, shape[1] // 4, 2 * _wavelets.num_features(2, orientations))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_shapes():
    assert Scattering2D()(np.zeros((2, 28, 28, 1), np.float32)).shape == (2, 7, 7, 81)
    assert Scattering2D()(np.zeros((1, 32, 32, 3), np.float32)).shape == (1, 8, 8, 243)
    assert Scattering2D(3, 4)(np.zeros((1, 16, 24, 1), np.float32)).shape == (1, 2, 3, 61)
    assert Scattering2D(3, 4).compute_output_shape((None, 16, 24, 1)) == (None, 2, 3, 61)
    with pytest.raises(ValueError, match="at least 8 x 8"):
        Scattering2D(3)(np.zeros((1, 7, 8, 1), np.float32))
    with pytest.raises(ValueError, match="scales must be"):
        Scattering2D(0)


def test_properties():
    """Flat images have no wavelet coefficients; scale is kept; a small shift moves pixels more than features."""
    layer, rng = Scattering2D(), np.random.default_rng(1)
    flat = layer(np.full((1, 28, 28, 1), 0.5, np.float32)).numpy()
    np.testing.assert_allclose(flat[..., 0], 0.5, atol=1e-5)
    np.testing.assert_allclose(flat[..., 1:], 0, atol=1e-5)
    x = np.zeros((1, 28, 28, 1), np.float32)
    x[:, 6:22, 6:22] = rng.random((1, 16, 16, 1))
    one, three, shifted = (layer(v).numpy() for v in (x, 3 * x, np.roll(x, 1, 2)))
    np.testing.assert_allclose(three, 3 * one, atol=1e-5)
    distance = [np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in ((one, shifted), (x, np.roll(x, 1, 2)))]
    assert distance[0] < 0.5 * distance[1]


def test_a_quarter_turn_permutes_orientations():
    layer = Scattering2D(2, 4)
    x = np.random.default_rng(2).random((1, 28, 28, 1), np.float32)
    x = np.pad(x[:, 8:20, 8:20], ((0, 0), (8, 8), (8, 8), (0, 0)))
    plain, turned = layer(x).numpy(), layer(np.rot90(x, axes=(1, 2)).copy()).numpy()
    energy, other = (f[..., 1:5].sum((0, 1, 2)) for f in (plain, turned))
    np.testing.assert_allclose(other, np.roll(energy, 2), rtol=0.02)
    assert not np.allclose(other, energy, rtol=0.02)


def test_rows_do_not_mix():
    """The guarantee of individual clipping rests on it."""
    x = np.random.default_rng(3).random((3, 8, 8, 2), np.float32)
    front, _ = models.fixed_features(models.scattering_linear((8, 8, 2), 3, orientations=2))
    changed = x.copy()
    changed[1] = 5
    before, after = front(x).numpy(), front(changed).numpy()
    np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])
    assert not np.allclose(before[1], after[1])
    assert front.weights == []


def test_front_and_head_are_the_model():
    model = models.scattering_cnn((12, 12, 1), 5, orientations=2, filters=4, seed=1)
    front, head = models.fixed_features(model)
    x = np.random.default_rng(4).random((4, 12, 12, 1), np.float32)
    np.testing.assert_allclose(head(front(x)), model(x), atol=1e-6)
    assert [id(v) for v in head.trainable_variables] == [id(v) for v in model.trainable_variables]
    assert models.fixed_features(models.mlp((4,), 2)) is None
    assert unsupported(model, BatchGradient()) == []


def private(model):
    plan = dp.PrivacyPlan(
        dp.Poisson(rate=0.25, rounds_per_epoch=4, expected_size=8), dp.FullGradientClipping(1.0), 0.5, epochs=1
    )
    made = dp.PrivateModel(model, plan, seed=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss=loss)
    return made


@pytest.mark.slow
def test_precomputed_features_train_the_same_model(tmp_path):
    """One pass computes the whole model; on features computed before it, the weights are the same, and so is what is exported."""
    rng = np.random.default_rng(5)
    x, y = rng.random((32, 12, 12, 1), np.float32), rng.integers(3, size=32)
    whole, parts = (models.scattering_linear((12, 12, 1), 3, orientations=2, seed=1) for _ in range(2))
    front, head = models.fixed_features(parts)
    on_images, on_features = private(whole), private(head)
    on_images.fit(x, y, verbose=0)
    on_features.fit(front.predict(x, verbose=0), y, verbose=0)
    assert not np.allclose(
        head.get_weights()[0], models.scattering_linear((12, 12, 1), 3, orientations=2, seed=1).get_weights()[0]
    )
    for a, b in zip(whole.get_weights(), head.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    on_features.export(tmp_path / "model", front=front)
    served = load_exported(tmp_path / "model")
    np.testing.assert_allclose(served.predict(x), whole(x), atol=1e-4)
