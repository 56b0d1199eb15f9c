"""Morlet wavelets and Gaussian blurs on a torus, by their formulas. Nothing here ever sees data.

The conventions are those of Kymatio (Andreux et al., *Kymatio: Scattering Transforms in Python*, 2020), so that published
results on scattering features apply.
"""

from __future__ import annotations

import math

import numpy as np

_WRAPS = range(-2, 3)
"""Copies of a filter that are added up to make it periodic; farther ones are below the precision of float32."""


def num_features(scales: int, orientations: int) -> int:
    """Coefficients for each channel and position: 1 + J L + L^2 J (J - 1) / 2."""
    return 1 + scales * orientations + orientations**2 * scales * (scales - 1) // 2


class Bank:
    """The filters for images of one size.

    Args:
      height, width: of the images.
      scales, orientations: J and L.

    Attributes:
      rows, columns: int32, which row (column) of the image each row of the padded one shows: reflected at the edges.
    """

    def __init__(self, height: int, width: int, scales: int, orientations: int):
        self.scales, self.orientations, step = scales, orientations, 2**scales
        self.size = tuple(((n + step) // step + 1) * step for n in (height, width))
        self._kept = (height // step, width // step)
        self.rows, self.columns = (_reflected(n, padded) for n, padded in zip((height, width), self.size, strict=True))
        self._wavelets = [
            np.stack([np.fft.fft2(morlet(self.size, j, k, orientations)).real for k in range(orientations)])
            for j in range(scales)
        ]

    def wavelets(self, scale: int, resolution: int) -> np.ndarray:
        """Spectra (real) ``[L, M / 2^resolution, N / 2^resolution]``, complex64, of the wavelets of one scale."""
        step, spectra = 2**resolution, self._wavelets[scale]
        count, m, n = spectra.shape
        # Subsampled in space with the sum of the filter kept: the folded spectrum, as a sum.
        folded = spectra.reshape(count, step, m // step, step, n // step).sum(axis=(1, 3))
        return folded.astype(np.complex64)

    def blur(self, resolution: int) -> tuple[np.ndarray, np.ndarray]:
        """(A, B), float32: ``A x B^T`` is x * phi at every 2^(J - resolution)-th position inside the margin."""
        return tuple(self._blur_matrix(axis, resolution) for axis in (0, 1))

    def _blur_matrix(self, axis: int, resolution: int) -> np.ndarray:
        step, padded = 2**self.scales, self.size[axis]
        positions = np.arange(padded, dtype=np.float64)
        sigma = 0.8 * 2 ** (self.scales - 1)
        phi = sum(np.exp(-((positions + k * padded) ** 2) / (2 * sigma**2)) for k in _WRAPS)
        phi *= 2**resolution / (math.sqrt(2 * math.pi) * sigma)
        to = step * np.arange(1, 1 + self._kept[axis])  # the first position is margin
        at = 2**resolution * np.arange(padded // 2**resolution)
        return phi[(to[:, None] - at) % padded].astype(np.float32)


def _reflected(size: int, padded: int) -> np.ndarray:
    before = (padded - size) // 2
    return np.pad(np.arange(size), (before, padded - size - before), mode="reflect").astype(np.int32)


def morlet(size: tuple[int, int], scale: int, orientation: int, orientations: int) -> np.ndarray:
    """A Morlet wavelet of scale 2^j on a torus, complex128 ``size``: an oscillating Gaussian less a Gaussian, of mean 0."""
    angle = (int(orientations - orientations / 2 - 1) - orientation) * math.pi / orientations
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / orientations
    wave, envelope = (_gabor(size, sigma, angle, xi, slant) for xi in (frequency, 0.0))
    return wave - wave.sum() / envelope.sum() * envelope


def _gabor(size: tuple[int, int], sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    (m, n), c, s = size, math.cos(angle), math.sin(angle)
    total = np.zeros(size, np.complex128)
    for i in _WRAPS:
        for k in _WRAPS:
            y, x = np.mgrid[i * m : (i + 1) * m, k * n : (k + 1) * n].astype(np.float64)
            along, across = y * c + x * s, x * c - y * s
            total += np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * frequency * along)
    return total / (2 * math.pi * sigma**2 / slant)
