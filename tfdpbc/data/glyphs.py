"""`glyphs`: 28 x 28 grey images of handwritten-looking digits, drawn here so that nothing need be downloaded.

Each image takes one of a few ways to write its digit (`strokes`), moves the control points, bends the plane (a smooth
random displacement), applies a random affine map, and draws the strokes with a pen of random width and pressure. Stray
marks, uneven light and pixel noise follow. Labels are exact. A linear model reaches 89 %, the tutorial CNN
98 to 99 % in four epochs without privacy and 97 % in six at epsilon = 2.9, delta = 1e-5.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tfdpbc import _validate
from tfdpbc.data import cache, strokes

VERSION = 1  # raise it with every change of the images: caches of another version are drawn anew
SEED = 20_200
SIDE = 28
NUM_CLASSES = 10
SIZES = {"train": 60_000, "test": 10_000}

_CHUNK = 250  # images drawn at once: small enough for a processor's cache
_MARKS, _MARK_POINTS = 2, 8


def load(split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a split, as `generate` draws them by default; from the user's cache once drawn."""
    _validate.choice("split", split, SIZES)
    size = SIZES[split]

    def make() -> dict[str, np.ndarray]:
        return dict(zip("xy", generate(split), strict=True))

    def good(arrays: dict[str, np.ndarray]) -> bool:
        x, y = arrays["x"], arrays["y"]
        return x.shape == (size, SIDE, SIDE, 1) and x.dtype == np.uint8 and y.shape == (size,) and y.dtype == np.int64

    arrays = cache.fetch(f"glyphs-{split}", VERSION, make, good)
    return arrays["x"], arrays["y"]


def generate(split: str = "train", seed: int = SEED, num_examples: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Draws a split.

    Args:
      split: "train" (60,000 images) or "test" (10,000); independent of each other under one seed.
      seed: non-negative integer.
      num_examples: draws only the first ones (they do not depend on how many follow).

    Returns:
      images [N, 28, 28, 1], uint8, bright strokes on dark ground, and labels [N], int64, uniform on 0..9.
    """
    _validate.choice("split", split, SIZES)
    seed = _validate.integer("seed", seed, at_least=0)
    size = SIZES[split] if num_examples is None else _validate.integer("num_examples", num_examples, at_least=1)
    templates = strokes.templates()
    # One stream per chunk: the result depends neither on the number of threads nor on `num_examples`.
    streams = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(list(SIZES).index(split), chunk)))
        for chunk in range(-(-size // _CHUNK))
    ]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        x, y = zip(*pool.map(lambda rng: _draw(rng, templates), streams), strict=True)
    return np.concatenate(x)[:size, :, :, None], np.concatenate(y)[:size]


def _draw(rng: np.random.Generator, templates: strokes.Templates) -> tuple[np.ndarray, np.ndarray]:
    """One chunk: images [_CHUNK, 28, 28] and labels [_CHUNK]."""
    labels = rng.integers(NUM_CLASSES, size=_CHUNK)
    points, lengths = _write(rng, labels, templates)
    width = _uniform(rng, 0.75, 1.35, (_CHUNK, 1))
    pressure = 1 + 0.25 * _wave(rng, points.shape[1])
    marks, mark_lengths = _marks(rng)
    points = np.concatenate([points, marks], 1)
    lengths = np.concatenate([lengths, mark_lengths], 1)
    widths = np.concatenate([width * pressure, np.broadcast_to(0.8 * width, mark_lengths.shape)], 1)
    ink = _splat(points, lengths, widths)
    image = np.minimum(1.5 * ink, 1.0)  # a pen saturates: flat strokes with soft edges
    return _expose(rng, image), labels


def _write(rng: np.random.Generator, labels: np.ndarray, templates: strokes.Templates) -> tuple[np.ndarray, np.ndarray]:
    """Points [n, POINTS, 2] of the strokes in pixels, and the length of stroke each stands for [n, POINTS]."""
    n = len(labels)
    first = np.searchsorted(templates.digit, labels)
    count = np.searchsorted(templates.digit, labels, side="right") - first
    variant = first + (rng.random(n) * count).astype(int)
    controls = templates.controls[variant] + 0.05 * rng.standard_normal((n, *templates.controls.shape[1:]), np.float32)
    points = templates.sampling[variant] @ controls
    points = points + _bend(rng, points)
    affine, scale = _affine(rng, n)
    points = points @ affine
    points += SIDE / 2 - 0.5 + _uniform(rng, -1.6, 1.6, (n, 1, 2))
    return points, templates.lengths[variant] * scale[:, None]


def _bend(rng: np.random.Generator, points: np.ndarray, waves: int = 2, size: float = 0.09) -> np.ndarray:
    """An elastic deformation: a sum of random plane waves of long wavelength, evaluated at the points."""
    n = len(points)
    bend = np.zeros_like(points)
    for _ in range(waves):
        frequency = rng.standard_normal((n, 2, 1), np.float32) * 1.8
        phase = _uniform(rng, 0, 2 * np.pi, (n, 1, 1))
        amplitude = size * rng.standard_normal((n, 1, 2), np.float32)
        bend += amplitude * np.sin(points @ frequency + phase)
    return bend


def _affine(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rotation, slant and scale: row vectors times [n, 2, 2] give pixels; and the mean scale [n], pixels per unit."""
    angle = 0.1 * rng.standard_normal(n, np.float32)
    slant = 0.12 * rng.standard_normal(n, np.float32)
    height = _uniform(rng, 7.6, 9.6, n)
    width = height * _uniform(rng, 0.8, 1.1, n)
    cos, sin = np.cos(angle), np.sin(angle)
    # x' = width (x - slant y), y' = height y; then the rotation.
    rows = [[width * cos, width * sin], [-slant * width * cos - height * sin, -slant * width * sin + height * cos]]
    return np.moveaxis(np.array(rows, np.float32), -1, 0), np.sqrt(width * height)


def _wave(rng: np.random.Generator, points: int) -> np.ndarray:
    """A slow random change along the strokes, within -1..1, [_CHUNK, points]."""
    along = np.linspace(0, 1, points, dtype=np.float32)
    return np.sin(_uniform(rng, 2, 9, (_CHUNK, 1)) * along + _uniform(rng, 0, 2 * np.pi, (_CHUNK, 1)))


def _marks(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Stray marks: up to _MARKS short strokes anywhere. Points in pixels and lengths (0 where there is no mark)."""
    shape = (_CHUNK, _MARKS, 1)
    middle = _uniform(rng, 0, SIDE - 1, (_CHUNK, _MARKS, 1, 2))
    angle, length = _uniform(rng, 0, np.pi, shape), _uniform(rng, 1, 6, shape)
    along = np.linspace(-0.5, 0.5, _MARK_POINTS, dtype=np.float32) * length
    points = middle + np.stack([np.cos(angle) * along, np.sin(angle) * along], -1)
    present = rng.random(shape, np.float32) < 0.25
    lengths = np.broadcast_to(length * present / _MARK_POINTS, along.shape)
    return points.reshape(_CHUNK, -1, 2), lengths.reshape(_CHUNK, -1)


def _splat(points: np.ndarray, lengths: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Ink [n, 28, 28]: the line integral of a Gaussian pen along the strokes, 1 in the middle of a straight one.

    A Gaussian is a product of one factor in x and one in y, so the sum over points is a matrix product per image.
    """
    grid = np.arange(SIDE, dtype=np.float32)
    sharpness = (0.5 / widths**2)[..., None]
    # Without the floor most factors are denormal numbers, which make the whole ten times slower.
    across, down = (np.exp(np.maximum(-sharpness * (points[..., axis, None] - grid) ** 2, -30)) for axis in (0, 1))
    down *= (lengths / (np.sqrt(2 * np.pi) * widths))[..., None].astype(np.float32)
    return down.transpose(0, 2, 1) @ across


def _expose(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Uneven light, contrast and pixel noise; uint8."""
    grid = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)
    slope = _uniform(rng, -0.05, 0.05, (2, _CHUNK, 1, 1))
    ground = _uniform(rng, 0.0, 0.05, (_CHUNK, 1, 1)) + slope[0] * grid[:, None] + slope[1] * grid
    contrast = _uniform(rng, 0.75, 1.0, (_CHUNK, 1, 1))
    grain = _uniform(rng, 0.0, 0.06, (_CHUNK, 1, 1)) * rng.standard_normal(image.shape, np.float32)
    image = ground + (contrast - ground) * image + grain
    return (255 * np.clip(image, 0, 1) + 0.5).astype(np.uint8)


def _uniform(rng: np.random.Generator, low: float, high: float, shape: int | tuple[int, ...]) -> np.ndarray:
    return np.float32(low) + np.float32(high - low) * rng.random(shape, np.float32)
