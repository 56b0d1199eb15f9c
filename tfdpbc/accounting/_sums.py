"""Sums of many independent integers: their distribution, with every error accounted for and put on the private side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

EPS = float(np.finfo(np.float64).eps)
TAIL = 1e-18  # probability that may be cut from each end of a sum
_WHOLE = 4096  # supports up to this size are kept whole: nothing is cut
_BLOCK = 1 << 22  # elements of a table held at a time
_WORK = 1 << 26  # table look-ups that one transform may cost: beyond, the sum is rounded up to a coarser lattice
_CERTAIN = (np.zeros(1, np.int64), np.ones(1), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """`count` independent copies of an integer with these `values` and `weights` (probabilities, wrong by `error`)."""

    values: np.ndarray
    weights: np.ndarray
    count: int
    error: float
    log_moment: Callable[[float], float]


def distribution(parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, float]:
    """(values, probabilities, error) of the sum.

    The distribution dominates the true one but for a total variation of at most `error`.
    """
    inherited = sum(part.error * part.count for part in parts)
    if all(part.values.size <= 2 for part in parts):
        return _sum_of_binomials(parts, inherited)
    if len(parts) == 1 and parts[0].count == 1:
        return parts[0].values, parts[0].weights, inherited
    parts = [_pruned(part) for part in parts]
    inherited = sum(part.error * part.count for part in parts)
    low, high = _window(parts)
    if (high - low) * sum(part.values.size for part in parts) > _WORK:
        return _on_a_lattice(parts, high - low)
    spectrum, wrong = _spectrum(parts, low, smooth_size(high - low + 1))
    return invert(spectrum, wrong, low, high, inherited + 2 * TAIL)


def _pruned(part: Part) -> Part:
    """Without the values that are too unlikely to occur in any of the copies; what is dropped is error."""
    keep = part.weights > TAIL / (part.count * part.values.size)
    weights = part.weights[keep]
    error = part.error + float(part.weights[~keep].sum())
    return dataclasses.replace(part, values=part.values[keep], weights=weights / weights.sum(), error=error)


def _on_a_lattice(parts: Sequence[Part], width: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The sum in two stages: blocks of rounds exactly, their sums rounded up to a lattice, then the sum of blocks.

    Rounding up is private. It adds at most a step per block, a step being a 2^−16 of the final width; blocks are as
    long as can be afforded.
    """
    step = max(1, width >> 16)
    rough, error, offset = [], 0.0, 0
    for part in parts:
        length = part.count
        while length > 1:
            low, high = _window([dataclasses.replace(part, count=length)])
            if (high - low) * part.values.size <= _WORK:
                break
            length = -(-length // 2)
        for size, count in ((length, part.count // length), (part.count % length, 1)):
            if not size or not count:
                continue
            values, weights, wrong = distribution([dataclasses.replace(part, count=size)])
            first = int(values[0])
            lattice, inverse = np.unique(-((first - values) // step), return_inverse=True)
            weights = np.bincount(inverse.ravel(), weights, lattice.size)
            offset += first * count
            error += wrong * count
            rough.append(Part(lattice, weights, count, 0.0, part.log_moment))
    values, weights, wrong = distribution(rough)
    return offset + step * values, weights, error + wrong


def invert(spectrum, wrong, low: int, high: int, error: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(values, probabilities, error) from a characteristic function at the roots of unity, for values in low..high.

    `wrong` bounds the rounding error of each entry of `spectrum`: by Parseval that bounds the probabilities in mean
    square, and by Cauchy-Schwarz in sum. What is not above that noise is dropped, and counted as error too.
    """
    size = smooth_size(high - low + 1)
    weights = np.fft.irfft(spectrum, size) if size > 1 else np.ones(1)
    noise = np.sqrt(size * np.mean(wrong**2))
    keep = (weights > noise / size) & (np.arange(size) <= high - low)
    error += noise + np.abs(weights[~keep]).sum()
    values = np.arange(low, low + size, dtype=np.int64)[keep]
    return values, weights[keep] / weights[keep].sum(), float(error)


def complex_log1p(z: np.ndarray) -> np.ndarray:
    """log(1 + z), accurate for small |z| (numpy's takes log|1 + z|, an error that the round count would multiply)."""
    x, y = z.real, z.imag
    excess = x * (2 + x) + y * y
    near = 0.5 * np.log1p(np.maximum(excess, -0.5))
    far = np.log(np.maximum(np.hypot(1 + x, y), 1e-300))  # finite at z = −1, so that multiples of it are
    return np.where(excess > -0.5, near, far) + 1j * np.arctan2(y, 1 + x)


def to_private_side(values, weights, error: float, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves probability `error` from the smallest values to `largest`.

    Of all distributions within that total variation distance, the result is the stochastically largest, so every
    increasing function of the value, δ(ε) among them, is bounded by its mean under the result.
    """
    if error <= 0:
        return values, weights
    weights = weights - np.diff(np.minimum(np.concatenate([[0.0], np.cumsum(weights)]), error))
    keep = weights > 0
    values, weights = values[keep], weights[keep]
    if values.size and values[-1] == largest:
        weights[-1] += error
        return values, weights / weights.sum()
    weights = np.append(weights, error)
    return np.append(values, largest), weights / weights.sum()


def chernoff(log_moment: Callable[[np.ndarray], np.ndarray], slack: float) -> tuple[int, int]:
    """(low, high) such that each of Pr[V < low] and Pr[V > high] is at most e^{−slack}; log_moment(t) = log E[e^{tV}].

    Every t gives a valid bound, so the best of a grid will do.
    """
    t = np.geomspace(1e-9, 100, 240)
    high = np.min((log_moment(t) + slack) / t)
    low = np.max(-(log_moment(-t) + slack) / t)
    return int(np.floor(low)), int(np.ceil(min(high, 2.0**62)))


def _log_moment(part: Part) -> Callable[[np.ndarray], np.ndarray]:
    values, centre = part.values.astype(np.float64), float(part.values @ part.weights)

    def moment(t: np.ndarray) -> np.ndarray:
        exponents = np.multiply.outer(t, values - centre)
        small = np.max(np.abs(exponents), axis=1) < 1
        with np.errstate(over="ignore", divide="ignore"):
            near = np.log1p(np.where(small[:, None], np.expm1(np.minimum(exponents, 1)), 0) @ part.weights)
            far = special.logsumexp(exponents + np.log(part.weights), axis=1)
        return part.count * (np.where(small, near, far) + t * centre)

    return moment


def _window(parts: Sequence[Part]) -> tuple[int, int]:
    least = sum(int(part.values[0]) * part.count for part in parts)
    most = sum(int(part.values[-1]) * part.count for part in parts)
    if most - least < _WHOLE:
        return least, most
    moments = [_log_moment(part) for part in parts]
    low, high = chernoff(lambda t: sum(moment(t) for moment in moments), -np.log(TAIL))
    return max(least, low), min(most, high)


def _spectrum(parts: Sequence[Part], low: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The discrete Fourier transform of the sum, shifted by `low`, and its rounding error.

    φ^count = exp(count·log1p(φ − 1)) with φ taken about the likeliest value: then φ − 1 is small wherever φ^count is
    not, and no digit is lost to a million rounds. Angles are reduced in integers.
    """
    unit = np.exp(-2j * np.pi * np.arange(size) / size)
    less_one = unit_less_one(size)
    logs = np.zeros(size // 2 + 1, np.complex128)
    shift = -low
    for part in parts:
        middle = int(part.values[np.argmax(part.weights)])
        shift += part.count * middle
        offsets = part.values - middle
        block = max(1, _BLOCK // offsets.size)
        for start in range(0, logs.size, block):
            j = np.arange(start, min(start + block, logs.size), dtype=np.int64)
            phi = less_one[np.multiply.outer(j, offsets % size) % size] @ part.weights
            logs[start : start + j.size] += part.count * complex_log1p(phi)
    spectrum = np.exp(logs) * unit[(np.arange(logs.size, dtype=np.int64) * (shift % size)) % size]
    return spectrum, EPS * np.abs(spectrum) * (4 + np.abs(logs))


def smooth_size(least: int) -> int:
    """The smallest size >= `least` of the form 2^a·{1, 3, 5, 9, 15}: their Fourier transforms are fast and accurate."""
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in (1, 3, 5, 9, 15))


@functools.lru_cache(maxsize=4)
def unit_less_one(size: int) -> np.ndarray:
    """e^{−2πi r/size} − 1 for r = 0..size−1 (read-only), without cancellation near r = 0 and r = size."""
    half = np.pi * np.arange(size // 2 + 1) / size
    first = -2 * np.sin(half) ** 2 - 1j * np.sin(2 * half)
    result = np.concatenate([first, np.conj(first[1 : (size + 1) // 2][::-1])])
    result.setflags(write=False)
    return result


def _sum_of_binomials(parts: Sequence[Part], inherited: float) -> tuple[np.ndarray, np.ndarray, float]:
    values, weights, error = np.zeros(1, np.int64), np.ones(1), inherited
    for part in parts:
        first = int(part.values[0])
        step = int(part.values[-1]) - first
        hits, probability, cut = binomial(part.count, float(part.weights[-1])) if step else _CERTAIN
        every = np.add.outer(values, part.count * first + step * hits).ravel()
        values, inverse = np.unique(every, return_inverse=True)
        weights = np.bincount(inverse.ravel(), np.multiply.outer(weights, probability).ravel(), values.size)
        error += cut
    return values, weights, error


def binomial(count: int, probability: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(hits, probabilities, cut) of Binomial(count, probability), by ratios out from the mode: tails keep their digits.

    `cut` is the probability of what was left out (0 for a small count).
    """
    mean = count * probability
    reach = count if count <= _WHOLE else 12 * np.sqrt(mean * (1 - probability)) + 100
    low, high = int(max(0, mean - reach)), int(min(count, np.ceil(mean + reach)))
    mode = min(int((count + 1) * probability), count)
    odds = probability / (1 - probability)
    up = np.arange(mode, high, dtype=np.float64)
    down = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((count - up) / (up + 1) * odds)
    falling = np.cumprod(down / (count - down + 1) / odds)
    weights = np.concatenate([falling[::-1], [1.0], rising])
    hits = np.arange(low, high + 1, dtype=np.int64)
    keep = weights > 0
    return hits[keep], weights[keep] / weights.sum(), 0.0 if count <= _WHOLE else 2 * TAIL
