r"""Trimmed sums: the largest contributions are left out, with noise of the global sensitivity or after a private test.

Of contributions :math:`x_1..x_n`, each clipped to norm C, TSUM_F is the sum of the n − F smallest in norm (0 if n <= F). One
that joins moves it by at most C, but where few norms are large, by far less. Source: seed paper C; algorithm.md,
"Propose-Test-Release". Which contributions are largest is known after the whole logical round only
(`training.whole_round`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from tfdpbc import _validate
from tfdpbc.aggregation.base import Sum


@dataclasses.dataclass(frozen=True)
class GlobalTrimmedSum(Sum):
    """TSUM_F with the noise of its global sensitivity, Cσ: seed paper C's baseline.

    Args:
      trim: F >= 0, how many contributions of a round are left out, the largest ones (of equal ones the first).

    Formal guarantee: a contribution that comes or goes moves the sum by at most C (it adds itself, or it pushes another
    one in), so what holds for the plain sum of a Poisson round holds here.
    """

    trim: int

    name: ClassVar[str] = "global-trimmed"
    whole_round: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "trim", _validate.integer("trim", self.trim, at_least=0))

    def check(self, sampling: Any, clipping: Any, noise_multiplier: float, statistics: Any) -> None:
        kind = type(self).__name__
        if sampling.name != "poisson" or not sampling.is_individual:
            expected = f"individual Poisson with {kind}, whose sensitivity is that of one example that comes or goes"
            _validate.fail("sampling", expected, sampling)
        if clipping.to_config()["name"] != "full":
            _validate.fail("clipping", f"a FullGradientClipping with {kind}: norms of whole gradients", clipping)
        if statistics is not None:
            _validate.fail("statistics", f"None with {kind}", statistics)

    # The round, as TensorFlow operations. Norms are those of the clipped contributions; -1 where there is none.

    def largest(self, norms: Any) -> Any:
        """Which contributions are trimmed, bool ``[m]``, from their norms ``[m]``: the F largest, of equal ones the first."""
        import tensorflow as tf

        m = norms.shape[0]
        if min(self.trim, m) == 0:
            return tf.zeros([m], tf.bool)
        _, positions = tf.math.top_k(norms, min(self.trim, m))
        chosen = tf.scatter_nd(positions[:, None], tf.ones_like(positions), [m])
        return chosen > 0

    def decide(self, norms: Any, key: Any) -> tuple[Any, Any]:
        """Which contributions are left out, bool ``[m]``, and the outcome of the test (None: there is none)."""
        return self.largest(norms), None


def _most_corrupted(sampling: Any, share: float) -> float:
    expected = share * sampling.expected_size
    return expected + 3 * math.sqrt(expected)


def most_corrupted(sampling: Any, share: float) -> int:
    """How many contributions of a round of individual Poisson sampling are corrupted, three deviations above the expected
    number, if a `share` of the examples is: F of a trimmed sum without a test."""
    return math.ceil(_most_corrupted(sampling, _validate.number("share", share, at_least=0, below=1)))


@dataclasses.dataclass(frozen=True)
class TrimmedSum(GlobalTrimmedSum):
    r"""Propose-Test-Release: a private test whether the trimmed sum is stable; if so it is released with little noise.

    The margin :math:`Δ = \max(0, F - \#\{i : \|x_i\| > τ\})` is how many contributions may change before one more could move
    the trimmed sum by more than τ. The round passes if Δ + Lap(b) > t. On pass TSUM_F is released with noise of standard
    deviation τσ; on fail the plain sum with noise Cσ_f, which is what a plan with `Sum` does.

    Args:
      trim: F, how many contributions of a round are left out on pass: more than are corrupted, and room for the test
        besides (`suggest`).
      release_norm: τ in (0, C], the proposed local sensitivity, in units of the gradient's norm.
      laplace_scale: b >= 1e-6, of the noise on the margin; the test alone costs 1/b.
      threshold: t; a round of margin 0 passes with probability e^{-t/b}/2, and that is dear where τ is far below C.
      fail_noise_multiplier: σ_f; None is the plan's σ.

    Formal guarantee: that of `accounting.ptr.ProposeTestRelease`, whose branches differ by at most τ where either margin of
    two neighbours is positive. Norms are float32, as those of the clipping are.
    """

    release_norm: float
    laplace_scale: float
    threshold: float
    fail_noise_multiplier: float | None = None

    name: ClassVar[str] = "trimmed"
    tested: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = {
            "release_norm": _validate.number("release_norm", self.release_norm, at_least=_validate.SMALLEST_NORM),
            "laplace_scale": _validate.number("laplace_scale", self.laplace_scale, at_least=1e-6),
            "threshold": _validate.number("threshold", self.threshold, at_least=-1e12, at_most=1e12),
        }
        if self.fail_noise_multiplier is not None:
            least = _validate.number("fail_noise_multiplier", self.fail_noise_multiplier, at_least=1e-6, at_most=1e12)
            checked["fail_noise_multiplier"] = least
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def check(self, sampling: Any, clipping: Any, noise_multiplier: float, statistics: Any) -> None:
        super().check(sampling, clipping, noise_multiplier, statistics)
        if callable(clipping.norm) or not isinstance(clipping.norm, int | float) or clipping.decay != 1:
            expected = "of a constant norm with TrimmedSum, whose release_norm is a part of it"
            _validate.fail("clipping", expected, clipping)
        if self.release_norm > clipping.norm:
            _validate.fail("release_norm", f"at most the clipping's norm {clipping.norm:g}", self.release_norm)

    def test(self, clipping: Any) -> Any:
        """What the accountant has to know of a round besides σ (`accounting.ptr.Test`)."""
        from tfdpbc.accounting.ptr import Test

        return Test(
            self.trim,
            self.threshold,
            self.laplace_scale,
            self.release_norm,
            float(clipping.norm),
            self.fail_noise_multiplier,
        )

    def noise_stds(self, noise_multiplier: float, clip_norm: Any) -> tuple[Any, Any]:
        """Standard deviations of the noise on the sum, on pass and on fail; none at all without `noise_multiplier`."""
        if noise_multiplier == 0:
            return 0.0, 0.0
        fail = noise_multiplier if self.fail_noise_multiplier is None else self.fail_noise_multiplier
        return noise_multiplier * self.release_norm, fail * clip_norm

    def margin(self, norms: Any) -> Any:
        """Δ, a scalar int32, from norms ``[m]``."""
        import tensorflow as tf

        return tf.maximum(0, self.trim - tf.reduce_sum(tf.cast(norms > self.release_norm, tf.int32)))

    def decide(self, norms: Any, key: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        from tfdpbc import noise

        noisy = tf.cast(self.margin(norms), tf.float64) + noise.laplace(self.laplace_scale, key)
        passed = noisy > self.threshold
        return self.largest(norms) & passed, passed

    @classmethod
    def suggest(
        cls,
        epsilon: float,
        delta: float,
        sampling: Any,
        norm: float,
        release_norm: float,
        epochs: int,
        corrupted: float = 0.1,
        failures: float = 0.01,
    ) -> TrimmedSum:
        """F, b and t for a promise, from public numbers alone; the plan's `calibrate` then finds σ.

        - b: three times the σ₀ that the plain sum would need: the test then is a ninth of a round's cost.
        - t: so high that wrong passes (margin 0) cost a tenth of δ in all: T q e^{-t/b}/2 = δ/10 for T rounds at rate q.
        - F: the corrupted contributions that a round has (three deviations above the expected number), and the margin
          t + b log(1/(2 failures)) that a clean round needs to pass but for a share of `failures`.

        Args:
          epsilon, delta: the promise.
          sampling: individual Poisson.
          norm: C.
          release_norm: τ, what honest contributions keep below; public knowledge, never measured on the private data.
          epochs: of the plan.
          corrupted: the share of corrupted examples, in [0, 1).
          failures: the share of failed tests that is acceptable where no honest norm is above τ, in (0, 1/2).

        Raises:
          ValueError: a round is too small: F would leave nothing of it. Ways out: larger rounds, a larger ε.
        """
        from tfdpbc import accounting
        from tfdpbc.accounting import calibration

        delta, corrupted = (
            _validate.probability("delta", delta),
            _validate.number("corrupted", corrupted, at_least=0, below=1),
        )
        failures = _validate.number("failures", failures, above=0, below=0.5)
        norm = _validate.number("norm", norm, above=0)
        release_norm = _validate.number("release_norm", release_norm, above=0, at_most=norm)
        if sampling.name != "poisson" or not sampling.is_individual:
            _validate.fail("sampling", "individual Poisson", sampling)
        rate, rounds = sampling.rate, sampling.rounds_per_epoch * _validate.integer("epochs", epochs, at_least=1)
        plain = calibration.smallest_noise(
            lambda noise: accounting.poisson(rate, noise, rounds, 1).epsilon(delta), epsilon, tolerance=0.01
        )
        scale = 3 * plain
        threshold = scale * max(0.0, math.log(5 * rounds * rate / delta))
        needed = threshold + scale * math.log(1 / (2 * failures))
        trim = math.ceil(_most_corrupted(sampling, corrupted) + needed)
        if trim >= sampling.expected_size:
            expected_ = f"with an expected_size > {trim} (contributions that would be trimmed), or a larger epsilon"
            _validate.fail("sampling", expected_, sampling)
        return cls(trim, release_norm, scale, threshold)
