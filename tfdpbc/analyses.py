"""Which theorem belongs to which sampling: every method that states an ε for a plan, and against whom it holds.

Numbers come from `accounting`, which knows no sampling; words from `guarantee`. A sampling that is not listed here is
refused, never approximated by another one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

from tfdpbc import _validate
from tfdpbc import sampling as samplings

MIXTURE_ADVERSARY = (
    "sees every noisy update and also learns how many contributions of each round hold a differing example "
    "(stronger than the usual adversary)"
)
USUAL_ADVERSARY = "sees every noisy update and knows every other example; which examples a round used stays secret"
TEST_ADVERSARY = (
    "sees every noisy update and the outcome of every test, and knows every other example; which examples a round used "
    "stays secret"
)
EXACT_GROUP = 128
"""The largest group whose participation is counted exactly; beyond it certified bounds stand, which cost little: c² is at
most T min(m, g)², and E g min(m, g) under shuffling; and the group operator on exact counts of parts of the group."""
MOST_TESTED_NOISE = 100.0
"""The largest noise multiplier tried for a tested round: its update costs less than 1 % of a test's own cost then."""
RENYI_GROUP = 16
"""The largest group for which a Rényi row is computed beside: each order costs a sum over all participations."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What an accountant has to know of some released rounds.

    Attributes:
      sampling: how the rounds were drawn.
      noise_multiplier: σ = noise std / sensitivity of the whole contribution (σ/√L for L blocks); 0 is no noise.
      rounds: how many were released.
      group_size: g, how many examples differ.
      test: what each round tests before it is released in one of two ways (`accounting.ptr.Test`), or None.
    """

    sampling: samplings.Sampling
    noise_multiplier: float
    rounds: int
    group_size: int
    test: Any = None

    @property
    def kind(self) -> str:
        """By what its theorem is found."""
        return self.sampling.name if self.test is None else f"tested {self.sampling.name}"


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to state ε: against whom it holds, what it is worth, how it is computed (δ ↦ ε)."""

    adversary: str
    epsilon: Callable[[float], float]
    certified: bool = True
    kind: str = "upper"


@functools.lru_cache(maxsize=256)
def participation(sampling: samplings.Sampling, rounds: int, group_size: int) -> Any:
    """Exact distribution of c² = sum of k² over the rounds for a group, where the sampling has fixed sizes, else None."""
    from tfdpbc.accounting import participation as exact

    compute = {"shuffling": exact.shuffling, "subsampling": exact.subsampling}.get(sampling.name)
    return compute and compute(
        num_examples=sampling.num_examples,
        contributions=sampling.contributions,
        examples_per_contribution=sampling.examples_per_contribution,
        rounds=rounds,
        group_size=group_size,
    )


@functools.lru_cache(maxsize=8)  # a curve may hold tens of megabytes
def curves(run: Run) -> dict[str, tuple[Any, str]]:
    """The certified trade-off functions of a run: method → (curve, adversary); all of them hold at once.

    Raises:
      ValueError: no theorem is known for the sampling.
    """
    from tfdpbc import accounting

    analyse = _validate.choice("sampling", run.kind, _CURVES)
    if run.rounds == 0 or run.noise_multiplier == 0:
        curve = accounting.Gaussian(0.0 if run.rounds == 0 else math.inf)
        main = {"shuffling": "mixture", "subsampling": "subsampled"}.get(run.sampling.name, "pld")
        return {main: (curve, adversary(run.sampling, run.test))}
    return _CURVES[analyse](run)


def trade_off(run: Run) -> Any:
    """The trade-off function that the run keeps against the adversary of its sampling (:func:`adversary`)."""
    from tfdpbc.accounting.best import Best

    # What holds against a stronger adversary holds against the usual one too, so the best of all may be claimed.
    found = [curve for curve, _ in curves(run).values()]
    return found[0] if len(found) == 1 else Best(found)


def adversary(sampling: samplings.Sampling, test: Any = None) -> str:
    """Against whom `trade_off` holds."""
    if test is not None:
        return TEST_ADVERSARY
    return MIXTURE_ADVERSARY if sampling.name == "shuffling" else USUAL_ADVERSARY


def headline(run: Run, delta: float) -> tuple[float, str, str]:
    """(ε, adversary, method) of the best certified method at `delta`; of equal ones that against the stronger adversary."""
    found = [
        (float(curve.epsilon(delta)), whom != MIXTURE_ADVERSARY, whom, name)
        for name, (curve, whom) in curves(run).items()
    ]
    if run.test is not None and run.rounds and run.noise_multiplier and run.group_size == 1:
        # A Rényi curve is no trade-off function; what it says of a wrong pass can be the better statement for a large δ.
        found.append((_tested_renyi(run, delta), True, TEST_ADVERSARY, "rdp"))
    epsilon, _, whom, name = min(found)
    return epsilon, whom, name


def methods(run: Run) -> dict[str, Method]:
    """Every method that applies, the certified main ones first: name → `Method`."""
    from tfdpbc.accounting import Grouped

    found = {name: Method(whom, curve.epsilon) for name, (curve, whom) in curves(run).items()}
    if run.rounds == 0 or run.noise_multiplier == 0:
        return found
    if run.test is not None:
        return found | _more_of_tested(run)
    # A group's Rényi divergence by the general rule costs g quadratures an order: only where g is counted exactly.
    exact = [pair for pair in curves(run).values() if run.group_size == 1 or not isinstance(pair[0], Grouped)]
    if exact and run.group_size <= RENYI_GROUP:
        curve, whom = exact[0]
        found["rdp"] = Method(whom, lambda delta: _converted(curve.renyi, delta))
    return found | _MORE[run.sampling.name](run)


# Fixed sizes, replace.


def _mixture(run: Run) -> tuple[Any, str]:
    """Paper A, Theorems 5.5 and 5.6 (accounting.md section 2)."""
    from tfdpbc import accounting
    from tfdpbc.accounting.best import Best

    sampling, g = run.sampling, run.group_size
    if g > EXACT_GROUP:
        # A group is in at most m contributions of a round, and of a shuffled epoch in at most g.
        hit = min(sampling.contributions, g)
        most = run.rounds * hit**2
        if sampling.name == "shuffling":
            most = min(most, math.ceil(run.rounds / sampling.rounds_per_epoch) * g * hit)
        bound = accounting.Gaussian(math.sqrt(most) / run.noise_multiplier)
        # The group operator on exact counts of its parts, linear in their number.
        parts = -(-g // EXACT_GROUP)
        part = accounting.GaussianMixture.of(participation(sampling, run.rounds, -(-g // parts)), run.noise_multiplier)
        return Best([bound, part.group(parts)]), MIXTURE_ADVERSARY
    exact = participation(sampling, run.rounds, g)
    return accounting.GaussianMixture.of(exact, run.noise_multiplier), MIXTURE_ADVERSARY


def _subsampled(run: Run) -> tuple[Any, str]:
    """C_p(G_{1/σ})^{⊗T}, through the group operator for g > 1 (accounting.md section 3)."""
    from tfdpbc import accounting

    one = accounting.fixed_size(_share(run.sampling), run.noise_multiplier, run.rounds)
    return one.group(run.group_size), USUAL_ADVERSARY


def _share(sampling: Any) -> float:
    """p = ms/N, the probability that a given example takes part in a given round."""
    return sampling.contributions * sampling.examples_per_contribution / sampling.num_examples


def _more_of_shuffling(run: Run) -> dict[str, Method]:
    from tfdpbc.accounting import participation as exact
    from tfdpbc.accounting import shuffled

    sampling, per_epoch = run.sampling, run.sampling.rounds_per_epoch
    found = {}
    if sampling.contributions == 1:  # Table 1 of paper A: a bound, since c² <= g in each epoch
        mu = exact.shuffled_batch_mu(sampling.num_examples, run.rounds, per_epoch, run.noise_multiplier, run.group_size)
        found["gaussian_bound"] = Method(MIXTURE_ADVERSARY, _gaussian(mu))
    # A group of g gives away at least what one of its members does.
    found["lower_bound"] = Method(
        USUAL_ADVERSARY,
        lambda delta: shuffled.lower_bound(
            per_epoch, run.noise_multiplier, run.rounds, delta, per_epoch * _share(sampling)
        ),
        certified=False,
        kind="lower",
    )
    return found


def _more_of_subsampling(run: Run) -> dict[str, Method]:
    from tfdpbc.accounting import clt_mu
    from tfdpbc.accounting import participation as exact

    found = {}
    if run.sampling.contributions == 1:  # Table 1 of paper A: only what large E tends to
        epochs = run.rounds / run.sampling.rounds_per_epoch
        mu = exact.asymptotic_mu(epochs, run.noise_multiplier, run.group_size)
        found["gaussian_bound"] = Method(MIXTURE_ADVERSARY, _gaussian(mu), certified=False)
    mu = run.group_size * clt_mu(_share(run.sampling), run.noise_multiplier, run.rounds)
    found["clt"] = Method(USUAL_ADVERSARY, _gaussian(mu), certified=False)
    return found


# Random sizes, add/remove.


def _poisson(run: Run) -> tuple[Any, str]:
    """The privacy loss distribution of the subsampled Gaussian mechanism (accounting.md section 3)."""
    from tfdpbc import accounting

    rate = run.sampling.rate
    return accounting.poisson(rate, run.noise_multiplier, run.rounds, run.group_size), USUAL_ADVERSARY


def _more_of_poisson(run: Run) -> dict[str, Method]:
    from tfdpbc.accounting import renyi

    if run.group_size > 1:
        return {}
    base = functools.partial(renyi.gaussian, noise_multiplier=run.noise_multiplier)

    def black_box(delta: float) -> float:
        return _converted(
            lambda order: run.rounds * renyi.subsampled_upper(base, run.sampling.rate, int(order)), delta, range(2, 257)
        )

    return {"black_box": Method(USUAL_ADVERSARY, black_box)}


# A private test, then one of two releases.


def _tested(run: Run) -> tuple[Any, str]:
    """Propose-Test-Release of Poisson rounds, by the profiles of its worst pairs (accounting.md section 4)."""
    release = run.test.release(run.noise_multiplier)
    curve = release.trade_off(run.sampling.rate, run.rounds)
    # Margins of a group may lie g apart, for which there is no analysis of its own: the group operator holds for any f.
    return curve.group(run.group_size), TEST_ADVERSARY


def _tested_renyi(run: Run, delta: float) -> float:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the best order")
        return run.test.release(run.noise_multiplier).renyi_epsilon(delta, run.sampling.rate, run.rounds)


def _more_of_tested(run: Run) -> dict[str, Method]:
    if run.group_size > 1:
        return {}
    release = run.test.release(run.noise_multiplier)

    def bound(name: str) -> Callable[[float], float]:
        def epsilon(delta: float) -> float:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="the best order")
                return release.bounds(delta, run.sampling.rate, run.rounds)[name]

        return epsilon

    found = {
        "rdp": Method(TEST_ADVERSARY, functools.partial(_tested_renyi, run)),
        "black_box": Method(TEST_ADVERSARY, bound("black_box")),
        "advanced_composition": Method(TEST_ADVERSARY, bound("advanced_composition")),
    }
    found["lower_bound"] = Method(TEST_ADVERSARY, bound("lower_bound"), certified=False, kind="renyi-lower")
    return found


def _balls_in_bins(run: Run) -> tuple[Any, str]:
    """Each epoch's dominating pair; an epoch that has begun counts as a whole, for the rest of it only takes away."""
    from tfdpbc.accounting import balls_in_bins

    per_epoch = run.sampling.rounds_per_epoch
    epochs = math.ceil(run.rounds / per_epoch)
    return balls_in_bins.balls_in_bins(per_epoch, run.noise_multiplier, epochs, run.group_size), USUAL_ADVERSARY


def _more_of_balls_in_bins(run: Run) -> dict[str, Method]:
    from tfdpbc.accounting import balls_in_bins

    per_epoch = run.sampling.rounds_per_epoch
    epochs = run.rounds // per_epoch  # a lower bound may count whole epochs only

    def lower(delta: float) -> float:
        return balls_in_bins.lower_bound(per_epoch, run.noise_multiplier, epochs, delta) if epochs else 0.0

    return {"lower_bound": Method(USUAL_ADVERSARY, lower, certified=False, kind="lower")}


def _converted(curve: Callable[[float], float], delta: float, *orders: Any) -> float:
    """ε of a Rényi curve, which stands beside a better headline: that more orders could help it is no news."""
    from tfdpbc.accounting import renyi

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the best order")
        return renyi.to_epsilon(curve, delta, *orders)


def _gaussian(mu: float) -> Callable[[float], float]:
    from tfdpbc.accounting import Gaussian

    return Gaussian(mu).epsilon


_CURVES = {
    "shuffling": lambda run: {"mixture": _mixture(run)},
    "subsampling": lambda run: {"subsampled": _subsampled(run), "mixture": _mixture(run)},
    "poisson": lambda run: {"pld": _poisson(run)},
    "tested poisson": lambda run: {"pld": _tested(run)},
    "balls-in-bins": lambda run: {"pld": _balls_in_bins(run)},
}
_MORE = {
    "shuffling": _more_of_shuffling,
    "subsampling": _more_of_subsampling,
    "poisson": _more_of_poisson,
    "balls-in-bins": _more_of_balls_in_bins,
}
