"""Scaling by public constants only."""

import numpy as np
import pytest

from tfdpbc.data.dataset import NORMALIZATION, Dataset

X = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), np.uint8)
Y = np.arange(6)


def test_fields():
    data = Dataset(X, Y, 10, "cifar10")
    assert len(data) == 6 and data.input_shape == (4, 4, 3)


@pytest.mark.parametrize(("dtype", "largest"), [(np.uint8, 255), (np.uint16, 65535)])
def test_scaled(dtype, largest):
    x = X.astype(dtype) * (largest // 255)
    scaled = Dataset(x, Y, 10, "any").scaled()
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, x / largest, rtol=1e-6)


def test_floats_are_left_alone():
    x = X / 255
    scaled = Dataset(x, Y, 10, "any").scaled()
    np.testing.assert_array_equal(scaled, x.astype(np.float32))
    assert scaled.dtype == np.float32


def test_standardized():
    mean, deviation = NORMALIZATION["cifar10"]
    np.testing.assert_allclose(
        Dataset(X, Y, 10, "cifar10").standardized(), (X / 255 - mean) / np.array(deviation), atol=1e-5
    )
    np.testing.assert_allclose(Dataset(X, Y, 10, "mine").standardized(), X / 127.5 - 1, atol=1e-5)
    assert X.max() > 200  # the images themselves stay as they are


@pytest.mark.parametrize("name", ["mnist", "mine"])
def test_no_example_changes_another(name):
    """The constants are public: what one example becomes does not depend on the others."""
    x = X[..., :1]
    whole, part = Dataset(x, Y, 10, name), Dataset(x[:1], Y[:1], 10, name)
    np.testing.assert_array_equal(whole.scaled()[:1], part.scaled())
    np.testing.assert_array_equal(whole.standardized()[:1], part.standardized())
