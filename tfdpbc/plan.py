"""PrivacyPlan: the frozen public configuration from which both the noise and the guarantee are derived."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from typing import Any

from tfdpbc import _validate, aggregation, analyses, clipping, guarantee, statistics
from tfdpbc import sampling as samplings
from tfdpbc.aggregation import Sum
from tfdpbc.clipping import Clipping
from tfdpbc.errors import UnreachableTarget
from tfdpbc.sampling import Sampling
from tfdpbc.statistics import PrivateStatistics

MOST_GROUP = 1000
"""The largest group a guarantee is stated for: beyond it ε means nothing for any noise that still trains."""
MOST_ROUNDS = 10**8
"""The most rounds of a plan: up to here every accountant answers in seconds, within 1 % of the exact value."""


@dataclasses.dataclass(frozen=True)
class Spent:
    """What the rounds released so far gave away.

    Attributes:
      plan: the plan they followed.
      rounds: how many they are, from the plan's first on.
      void: why no guarantee holds for the model, or None.
      caveats: what else its reader must know.
      repeated: rounds that were drawn anew and released besides (a run that was forked or begun again), a number for
        each stretch; each composes as a training of its own.
    """

    plan: PrivacyPlan
    rounds: int
    void: str | None = None
    caveats: tuple[str, ...] = ()
    repeated: tuple[int, ...] = ()

    def trade_off(self, group_size: int = 1) -> Any:
        """The `TradeOff` of the released rounds; that of a blatant leak where the guarantee is void."""
        if self.void:
            from tfdpbc.accounting import Gaussian

            return Gaussian(math.inf)
        parts = [self.plan.trade_off(group_size, rounds) for rounds in (self.rounds, *self.repeated)]
        return functools.reduce(lambda one, other: one.compose(other), parts)

    def epsilon(self, delta: float, group_size: int = 1) -> float:
        """ε at `delta`; ∞ where the guarantee is void."""
        if self.repeated and not self.void:
            return float(self.trade_off(group_size).epsilon(_validate.probability("delta", delta)))
        return math.inf if self.void else self.plan.epsilon(delta, group_size, self.rounds)

    def guarantee(self, delta: float, group_size: int = 1) -> dict[str, Any]:
        """The guarantee as a JSON-able object (see `PrivacyPlan.guarantee`)."""
        stated = self.plan.guarantee(delta, group_size, self.rounds, self.void, self.caveats)
        if self.repeated and stated["epsilon"] is not None:
            curve, again = self.trade_off(group_size), sum(self.repeated)
            stated |= {"epsilon": float(curve.epsilon(delta)), "mu": curve.mu, "rounds": self.rounds + again}
            stated["adversary"] = self.plan.adversary
            stated["warnings"] = [
                *stated["warnings"],
                f"Warning: {again} rounds were drawn and released a second time.",
            ]
        return stated

    def describe(self, delta: float = 1e-5, group_size: int = 1) -> str:
        """The guarantee in words."""
        return guarantee.describe(self.guarantee(delta, group_size))

    __str__ = describe


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """Everything public about a private training run.

    The standard deviation of the noise and the guarantee are computed here and nowhere else, from the same fields, so they
    cannot drift apart. Data, random state and realised batch sizes are never stored in a plan.

    Args:
      sampling: `Shuffling`, `Subsampling`, `Poisson` or `BallsInBins`; fixes the neighbouring relation with it.
      clipping: the clipping of contributions.
      noise_multiplier: σ = noise std / sensitivity >= 0, so that a round that one differing contribution hits is the
        Gaussian trade-off function G_{1/σ}. 0 trains without noise and is reported as ε = ∞.
      epochs: E >= 1.
      aggregation: how clipped contributions become one update.
      statistics: how the moving statistics of batch normalisation are released, as one more noised block that the
        guarantee counts; None where they are not (see `PrivateModel`).

    Formal guarantee: training that releases `rounds` updates with noise of `noise_std` on the aggregate is f-DP for
    f = `trade_off()` under the sampling's neighbouring relation, against the adversary named by `adversary`.
    """

    sampling: Sampling
    clipping: Clipping
    noise_multiplier: float
    epochs: int
    aggregation: Sum = Sum()
    statistics: PrivateStatistics | None = None

    def __post_init__(self) -> None:
        _validate.instance("sampling", self.sampling, Sampling, "Shuffling, Subsampling, Poisson or BallsInBins")
        _validate.instance("clipping", self.clipping, Clipping, "a clipping such as FullGradientClipping(norm)")
        _validate.instance("aggregation", self.aggregation, Sum, "an aggregation such as Sum() or TrimmedSum(...)")
        if self.statistics is not None:
            _validate.instance("statistics", self.statistics, PrivateStatistics, "PrivateStatistics(norm) or None")
            if self.sampling.is_individual or self.sampling.masked:
                expected = "None: batch normalisation needs contributions of several examples, of a fixed size"
                _validate.fail("statistics", expected, self.statistics)
        noise = _validate.number("noise_multiplier", self.noise_multiplier, at_least=0.0, at_most=1e12)
        if 0 < noise < 1e-6:
            _validate.fail("noise_multiplier", "0 or at least 1e-6", noise)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "epochs", _validate.integer("epochs", self.epochs, at_least=1))
        if self.rounds > MOST_ROUNDS:
            expected = f"at most {MOST_ROUNDS // self.rounds_per_epoch} (a plan holds up to {MOST_ROUNDS} rounds)"
            _validate.fail("epochs", expected, self.epochs)
        # Float32 squares of far smaller norms vanish, and the contribution would pass unclipped.
        if not self.clipping.smallest_bound(self.rounds, self.rounds_per_epoch) >= _validate.SMALLEST_NORM:
            _validate.fail("clipping", f"of norms >= {_validate.SMALLEST_NORM:g} to the last round", self.clipping)
        self.aggregation.check(self.sampling, self.clipping, self.noise_multiplier, self.statistics)
        self._check_measurement()

    # What the training loop needs.

    @property
    def rounds_per_epoch(self) -> int:
        """B, noisy releases per epoch."""
        return self.sampling.rounds_per_epoch

    @property
    def rounds(self) -> int:
        """Noisy releases of the whole plan."""
        return self.epochs * self.rounds_per_epoch

    @property
    def divisor(self) -> int:
        """The planned number of contributions, by which the noisy sum is divided."""
        return self.sampling.divisor

    def sensitivities(self, bounds: Any) -> Any:
        """How far one differing contribution moves each block of the aggregate, from the round's clip norms `bounds`."""
        return self.sampling.sensitivity_factor * bounds

    def noise_std(self, round_index: int, bounds: Any = None, passed: bool | None = None) -> list[float]:
        """Standard deviation of the noise on the aggregate (before division), for each block.

        Each of L blocks is noised for its own sensitivity, so one hit moves the whole by √L times the noise's scale: the
        guarantee is that of σ/√L (accounting.md, section 3).

        Args:
          round_index: the round, counted from 0.
          bounds: the round's clip norms (`PrivateModel.clip_norms`), where the clipping adapts them.
          passed: the outcome of the round's test, where the aggregation makes one.
        """
        if self.aggregation.tested:
            _validate.instance("passed", passed, bool, "True or False: the noise follows the outcome of the test")
            stds = self.aggregation.noise_stds(self.noise_multiplier, self.clipping.norm)
            return [stds[0] if passed else stds[1]]
        if bounds is None:
            if self.clipping.adaptive:
                _validate.fail("bounds", "given where the clip norms adapt: see PrivateModel.clip_norms()", bounds)
            bounds = self.clipping.bounds(round_index, self.rounds_per_epoch)
        return [self.update_noise_multiplier * self.sensitivities(bound) for bound in bounds]

    def measurement_std(self) -> float:
        """Standard deviation of the noise on each sum of the clipping's measured numbers (`Clipping.measure`); 0 if none.

        A contribution's K numbers lie in [0, 1]; 1/2 is taken off each, so they are a point of a cube of side 1 around 0. A
        contribution that comes or goes moves their sum by at most its norm, √K/2; one that is replaced by at most the
        cube's diameter, √K (a group that becomes empty: √K/2). So the sensitivity is √K f/2, with f = 1 or 2 the sampling's
        factor for clipped vectors. In particular one bit moves its centred count by 1/2 under add/remove, by 1 under replace.
        """
        return self.clipping.measurement_std(self.sampling.sensitivity_factor)

    @property
    def measurement_noise_multiplier(self) -> float:
        """z_m, the noise std over the sensitivity of what the clipping measures in a round; ∞ if it measures nothing."""
        count = self.clipping.measured()
        return self.measurement_std() / (math.sqrt(count) * self.sampling.sensitivity_factor / 2) if count else math.inf

    @property
    def update_noise_multiplier(self) -> float:
        r"""σ_Δ, the noise multiplier of the update: σ unless the clipping measures something besides.

        Both releases of a round are one Gaussian mechanism on the pair (update, measurement), each in units of its noise:
        a hit moves it by :math:`(n/σ_Δ^2 + 1/z_m^2)^{1/2}`, n = `composed_blocks`, and k hits by k times that. σ_Δ is such
        that this is √n/σ, so that every statement about the plan holds whatever is measured. With n = 1 and one bit it is
        Theorem 1 of Andrew et al. (2021): :math:`σ_Δ = (σ^{-2} - (2σ_b)^{-2})^{-1/2}`.
        """
        if self.noise_multiplier == 0 or not self.clipping.measured():
            return self.noise_multiplier
        share = self.noise_multiplier**2 / (self.clipping.composed_blocks() * self.measurement_noise_multiplier**2)
        return self.noise_multiplier / math.sqrt(1 - share)

    def for_model(self, model: Any) -> PrivacyPlan:
        """The plan with the number of blocks that `model` has, where the clipping leaves it open. `PrivateModel` does this.

        Raises:
          IncompatibleModel: the clipping was made for another number of blocks.
        """
        clip = self.clipping.for_model(model)
        return self if clip is self.clipping else dataclasses.replace(self, clipping=clip)

    @property
    def statistics_noise_std(self) -> float:
        """Standard deviation of the noise on the sum of the contributions' batch statistics; 0 where none are released."""
        if self.statistics is None:
            return 0.0
        return self.noise_multiplier * self.statistics.noise_ratio * self.sensitivities(self.statistics.norm)

    # What may be said about it.

    @property
    def neighbouring(self) -> str:
        """`"replace"` or `"add-remove"`."""
        return self.sampling.neighbouring

    @property
    def adversary(self) -> str:
        """Against whom `trade_off` holds; a single ε may hold against a stronger one (see `guarantee`)."""
        return analyses.adversary(self.sampling, self._test())

    def trade_off(self, group_size: int = 1, rounds: int | None = None) -> Any:
        """The `TradeOff` of the first `rounds` rounds (all by default) for a group of `group_size` examples."""
        return analyses.trade_off(self._run(group_size, rounds))

    def epsilon(self, delta: float, group_size: int = 1, rounds: int | None = None) -> float:
        """ε of the guarantee at `delta`, never below the truth; ∞ without noise. Warns where `delta` >= 1/N."""
        self._check_delta(delta)
        return analyses.headline(self._run(group_size, rounds), delta)[0]

    def mu(self, group_size: int = 1, rounds: int | None = None) -> float | None:
        """μ where the guarantee is exactly Gaussian, else None."""
        return self.trade_off(group_size, rounds).mu

    def participation(self, group_size: int = 1, rounds: int | None = None) -> Any:
        """Exact distribution of c² (accounting.md, section 2) for fixed sizes; None where sizes are random."""
        return analyses.participation(self.sampling, self._rounds(rounds), self._group(group_size))

    def bounds(self, delta: float, group_size: int = 1, rounds: int | None = None) -> dict[str, dict[str, Any]]:
        """Every method that applies: name → {"epsilon", "adversary", "certified", "kind"}.

        `certified` means that ε is proven to be an upper bound. Of kind "renyi-lower" is where any Rényi accountant that
        knows nothing of the mechanism but its Rényi curve ends at best. Of kind "lower" is what some model
        and data give away at least, so that no proof for the plan alone can state less; that of one example, whatever the
        group. Where it lies below the guarantee, nobody knows what is in between.
        """
        self._check_delta(delta)
        found = analyses.methods(self._run(group_size, rounds))
        return {
            name: {
                "epsilon": float(method.epsilon(delta)),
                "adversary": method.adversary,
                "certified": method.certified,
                "kind": method.kind,
            }
            for name, method in found.items()
        }

    def guarantee(
        self,
        delta: float,
        group_size: int = 1,
        rounds: int | None = None,
        void: str | None = None,
        caveats: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """The guarantee as the JSON-able object that travels with a model.

        Args:
          delta: δ in (0, 1).
          group_size: size of the protected group.
          rounds: rounds really released; all of the plan by default.
          void: why the guarantee does not hold for what is released, if so; ε and μ are then None.
          caveats: warnings to add to the plan's own.
        """
        rounds = self._rounds(rounds)
        _validate.probability("delta", delta)
        epsilon, whom, method = analyses.headline(self._run(group_size, rounds), delta)
        if math.isinf(epsilon):
            void = void or self.aggregation.void() or "no noise was added"
        notes = list(caveats)
        if not void and epsilon > 10:
            notes.append(
                f"Warning: ε = {guarantee.rounded_up(epsilon)} > 10 says little about what the model gives away."
            )
        if delta * self.sampling.planned_examples >= 1:
            notes.append(f"Warning: δ = {delta:g} is not below 1/N; such a δ allows giving away whole examples.")
        mu = self.mu(group_size, rounds)
        notes += self.clipping.caveats()
        released = ["every noisy update", "the final weights and any computation on them"]
        if self.clipping.adaptive:
            released.insert(1, "the clip norms of every round")
        if self.aggregation.tested:
            released.insert(1, "the outcome of every round's test")
        if self.statistics is not None:
            released.insert(1, "the moving statistics of batch normalisation")
        return {
            "sampling": self.sampling.name,
            "neighbouring": self.neighbouring,
            "adversary": whom,
            "noise_multiplier": self.noise_multiplier,
            "rounds": rounds,
            "delta": delta,
            "epsilon": None if void else epsilon,
            "method": None if void else method,
            "mu": None if void else mu,
            "group_size": group_size,
            "covers": guarantee.covers(released, void),
            "warnings": notes,
            "plan": self.to_config(),
            "versions": guarantee.versions(),
        }

    def describe(self, delta: float = 1e-5, group_size: int = 1, rounds: int | None = None) -> str:
        """The guarantee in words: neighbouring, adversary, what is and is not covered."""
        return guarantee.describe(self.guarantee(delta, group_size, rounds))

    __str__ = describe

    def calibrate(self, epsilon: float, delta: float, group_size: int = 1) -> PrivacyPlan:
        """The same plan with the smallest noise multiplier that keeps (`epsilon`, `delta`).

        Raises:
          UnreachableTarget: no noise multiplier in the supported range keeps the promise.
        """
        from tfdpbc.accounting import calibration

        epsilon = _validate.number("epsilon", epsilon, above=0.0)
        self._check_delta(delta)

        run = self._run(group_size, None)
        root_cost = self._root_cost()

        def epsilon_of(noise_multiplier: float) -> float:
            tried = dataclasses.replace(run, noise_multiplier=noise_multiplier / root_cost)
            return analyses.headline(tried, delta)[0]

        # With a test the noise of the sum buys nothing beyond some hundred: what the test itself costs is left.
        most = {"highest": analyses.MOST_TESTED_NOISE} if self.aggregation.tested else {}
        try:
            noise = calibration.smallest_noise(epsilon_of, epsilon, **most)
        except UnreachableTarget as error:
            if not self.aggregation.tested:
                raise
            raise UnreachableTarget(
                f"{error}; what is left at that noise is the cost of the test: a larger laplace_scale (with threshold and trim "
                "in proportion), fewer rounds or a smaller rate make it cheaper (TrimmedSum.suggest)"
            ) from None
        return dataclasses.replace(self, noise_multiplier=noise)

    def spent(self, rounds: int, void: str | None = None) -> Spent:
        """What the first `rounds` rounds of the plan gave away."""
        return Spent(self, self._rounds(rounds), void)

    # JSON.

    def to_config(self) -> dict[str, Any]:
        """JSON-able description; `from_config` is its inverse."""
        return {
            "sampling": self.sampling.to_config(),
            "clipping": self.clipping.to_config(),
            "noise_multiplier": self.noise_multiplier,
            "epochs": self.epochs,
            "aggregation": self.aggregation.to_config(),
            "statistics": self.statistics and self.statistics.to_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PrivacyPlan:
        """Builds a plan from what `to_config` returned.

        Raises:
          ValueError: a field is missing, unknown or out of range.
        """
        _validate.instance("config", config, dict, "a plan's configuration (a dict)")
        expected = {field.name for field in dataclasses.fields(cls)}
        if set(config) != expected:
            _validate.fail("config", f"a dict with the keys {sorted(expected)}", sorted(config))
        return cls(
            sampling=samplings.from_config(config["sampling"]),
            clipping=clipping.from_config(config["clipping"]),
            noise_multiplier=config["noise_multiplier"],
            epochs=config["epochs"],
            aggregation=aggregation.from_config(config["aggregation"]),
            statistics=statistics.from_config(config["statistics"]),
        )

    # Checks.

    def _check_measurement(self) -> None:
        """Refuses a measurement that would give away as much as the whole round may."""
        try:
            blocks, std = self.clipping.composed_blocks(), self.measurement_std()
        except ValueError:
            return  # the number of blocks is still open: checked once it is known
        root = math.sqrt(blocks)
        if std and self.measurement_noise_multiplier <= self.noise_multiplier / root:
            least = std * self.noise_multiplier / root / self.measurement_noise_multiplier
            _validate.fail(
                "clipping",
                f"with noise of a standard deviation > {least:.6g} on what it measures, or the plan with a smaller "
                f"noise_multiplier than {self.noise_multiplier:.6g} (it counts for update and measurement together)",
                self.clipping,
            )

    def _check_delta(self, delta: float) -> None:
        delta = _validate.probability("delta", delta)
        planned = self.sampling.planned_examples
        if delta * planned >= 1:
            warnings.warn(
                f"delta should be well below 1/N = {1 / planned:.3g}: such a δ allows giving away whole examples; "
                f"got delta={delta:g}",
                stacklevel=3,
            )

    def _root_cost(self) -> float:
        """σ/σ_total: all that a hit round releases is one Gaussian of 1/σ_total² = L/σ² + 1/σ_s², L blocks of noise σ and
        batch normalisation's statistics of noise σ_s (accounting.md, section 3)."""
        return math.sqrt(self.clipping.composed_blocks() + (self.statistics.charge if self.statistics else 0.0))

    def _run(self, group_size: int, rounds: int | None) -> analyses.Run:
        noise = self.noise_multiplier / self._root_cost()
        return analyses.Run(self.sampling, noise, self._rounds(rounds), self._group(group_size), self._test())

    def _test(self) -> Any:
        return self.aggregation.test(self.clipping) if self.aggregation.tested else None

    def _rounds(self, rounds: int | None) -> int:
        if rounds is None:
            return self.rounds
        return _validate.integer("rounds", rounds, at_least=0, at_most=self.rounds)

    def _group(self, group_size: int) -> int:
        most = min(MOST_GROUP, getattr(self.sampling, "num_examples", MOST_GROUP))
        return _validate.integer("group_size", group_size, at_least=1, at_most=most)
