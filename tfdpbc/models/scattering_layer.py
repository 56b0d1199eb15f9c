"""The wavelet scattering transform as a Keras layer without weights. Imports Keras: the models import it when built."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.models import _wavelets


@keras.saving.register_keras_serializable("tfdpbc")
class Scattering2D(keras.layers.Layer):
    """Wavelet scattering of images: moduli of Morlet wavelet coefficients, blurred and subsampled by 2^J.

    Orders 0, 1 and 2 of each input channel: ``x * phi``, ``|x * psi_1| * phi``, ``||x * psi_1| * psi_2| * phi`` for
    wavelets of J scales (psi_2 coarser than psi_1) and L orientations (Bruna and Mallat, *Invariant Scattering Convolution
    Networks*, 2013; the filters, the reflected margin and the order of the channels are those of Kymatio).

    It has no weights, trainable or other: every constant comes from a formula, nothing from data, and a row's output
    depends on that row alone. So it may stand in front of any model without a word in the guarantee.

    Args:
      scales: J >= 1; images must be at least 2^J pixels high and wide.
      orientations: L >= 1.

    Input: ``[batch, height, width, channels]``. Output: ``[batch, height // 2^J, width // 2^J, channels * F]`` with
    ``F = 1 + J L + L^2 J (J - 1) / 2`` (81 for J = 2, L = 8), the F of the first input channel first. Computed in float32
    whatever the dtype policy.
    """

    def __init__(self, scales: int = 2, orientations: int = 8, **kwargs: Any):
        super().__init__(**kwargs)
        self.scales = _validate.integer("scales", scales, at_least=1)
        self.orientations = _validate.integer("orientations", orientations, at_least=1)

    def build(self, input_shape: Any) -> None:
        _, height, width, _ = input_shape
        step = 2**self.scales
        if height is None or width is None or min(height, width) < step:
            _validate.fail("input_shape", f"fixed and at least {step} x {step} pixels for Scattering2D", input_shape)
        self._bank = _wavelets.Bank(height, width, self.scales, self.orientations)
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        batch, height, width, channels = input_shape
        count = _wavelets.num_features(self.scales, self.orientations)
        return batch, height // 2**self.scales, width // 2**self.scales, channels * count

    def call(self, inputs: Any) -> Any:
        bank, (_, height, width, channels) = self._bank, inputs.shape
        rows = tf.shape(inputs)[0]
        x = tf.transpose(tf.cast(inputs, tf.float32), [0, 3, 1, 2])
        x = tf.reshape(x, [rows * channels, 1, height, width])
        # An index with the reflection in it: margins may be wider than the image, where tf.pad refuses.
        x = tf.gather(tf.gather(x, bank.rows, axis=2), bank.columns, axis=3)
        features = [self._blurred(x, 0), *self._orders(x, bank)]
        features = tf.concat(features, axis=1)
        count, out = features.shape[1], features.shape[2:]
        features = tf.reshape(features, [rows, channels * count, *out])
        return tf.cast(tf.transpose(features, [0, 2, 3, 1]), self.compute_dtype)

    def _orders(self, x: Any, bank: _wavelets.Bank) -> list[Any]:
        """The first and second orders, the latter path by path after all of the former."""
        spectrum = tf.signal.fft2d(tf.cast(x, tf.complex64))
        first, second = [], []
        for j in range(self.scales):
            moduli = self._moduli(spectrum, 0, j)  # [n, L, M / 2^j, N / 2^j]
            first.append(self._blurred(moduli, j))
            coarser = range(j + 1, self.scales)
            if coarser:
                spectra = tf.signal.fft2d(tf.cast(moduli, tf.complex64))
                # [n, L, scales * L, ...]: all paths of one first wavelet stand together.
                paths = [self._blurred(self._moduli(spectra[:, :, None], j, other), other) for other in coarser]
                paths = tf.concat(paths, axis=2)
                second.append(tf.reshape(paths, [-1, paths.shape[1] * paths.shape[2], *paths.shape[3:]]))
        return first + second

    def _moduli(self, spectrum: Any, resolution: int, scale: int) -> Any:
        """|signal * psi of one scale|, subsampled to that scale, from the signal's spectrum at 2^-resolution."""
        wavelets, step = tf.constant(self._bank.wavelets(scale, resolution)), 2 ** (scale - resolution)
        m, n = (size // step for size in spectrum.shape[-2:])
        # Subsampling folds the spectrum: a sum of blocks, of which the whole product is never made.
        blocks = [(..., slice(a * m, a * m + m), slice(b * n, b * n + n)) for a in range(step) for b in range(step)]
        product = tf.add_n([spectrum[block] * wavelets[block] for block in blocks]) / step**2
        return tf.abs(tf.signal.ifft2d(product))

    def _blurred(self, x: Any, resolution: int) -> Any:
        """x * phi, subsampled to 2^J and without the margin: two small matrices, since phi is separable."""
        left, right = (tf.constant(matrix, tf.float32) for matrix in self._bank.blur(resolution))
        return _along_last(_along_last(x, right), left)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scales": self.scales, "orientations": self.orientations}


def _along_last(x: Any, matrix: Any) -> Any:
    """``[..., m, n] -> [..., q, m]``: the matrix ``[q, n]`` applied to the last axis, the last two axes exchanged.

    A plain product of two matrices: a batch of products with one broadcast factor corrupts memory in TensorFlow 2.21 with
    oneDNN (seen at ``[7, 36] @ [512, 1, 36, 36]``).
    """
    product = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), matrix, transpose_b=True)
    product = tf.reshape(product, [-1, *x.shape[1:-1], matrix.shape[0]])
    return tf.linalg.matrix_transpose(product)
