"""The contract of trade-off functions (issue 3, point 1); tests/accounting/test_contract.py runs it on every kind."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from tfdpbc.accounting import Gaussian, TradeOff

matplotlib.use("Agg")


class TradeOffContract:
    """Every kind answers f(α), δ(ε), ε(δ), Rényi(order), compose, group(g), isclose and plot, and no answer is optimistic.

    Subclasses give `make()`, the trade-off function, and `below(epsilon)`, for one `epsilon` >= 0 or a vector: a δ that is
    not above the truth, by another way than the library's (oracles.py, dp-accounting, a closed form).
    """

    ROOM = 1e-7  # the accuracy of `below`
    EPSILONS = (0.0, 0.1, 0.7, 2.0, 4.0)

    def make(self) -> TradeOff:
        raise NotImplementedError

    def below(self, epsilon: float) -> float:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> TradeOff:
        return cls().make()

    @pytest.mark.parametrize("method, value", [("f", 0.1), ("delta", 1.0), ("epsilon", 1e-5), ("renyi", 2.0)])
    def test_scalars_in_floats_out_and_arrays_keep_their_shape(self, kind, method, value):
        answer = getattr(kind, method)
        assert isinstance(answer(value), float)
        grid = answer(np.full((2, 3), value))
        assert grid.shape == (2, 3) and np.all(grid == answer(value))
        assert answer(np.zeros((0, 4))).shape == (0, 4)

    @pytest.mark.parametrize("method, value", [("f", 1.5), ("delta", np.nan), ("epsilon", 0.0), ("renyi", 1.0)])
    def test_bad_arguments_are_refused(self, kind, method, value):
        with pytest.raises(ValueError, match="must be"):
            getattr(kind, method)(value)

    def test_f_is_a_trade_off_function(self, kind):
        alpha = np.linspace(0, 1, 61)
        f = kind.f(alpha)
        assert np.all((f >= 0) & (f <= 1 - alpha)) and np.all(np.diff(f) <= 0)
        assert np.all(np.diff(f, 2) >= -1e-9), "f must be convex"
        assert f[-1] == 0 and np.array_equal(kind(alpha), f)

    def test_the_profile_falls_and_is_symmetric(self, kind):
        epsilon = np.linspace(0, 8, 33)
        delta = kind.delta(epsilon)
        assert np.all(np.diff(delta) <= 0) and np.all((delta >= 0) & (delta <= 1))
        mirrored = -np.expm1(-epsilon) + np.exp(-epsilon) * delta
        np.testing.assert_allclose(kind.delta(-epsilon), mirrored, rtol=1e-12)

    def test_delta_is_never_below_the_truth(self, kind):
        for epsilon in self.EPSILONS:
            assert kind.delta(epsilon) >= self.below(epsilon) * (1 - self.ROOM)

    def test_f_is_never_above_the_truth(self, kind):
        # f_true(α) = sup_ε 1 − δ_true(ε) − e^ε α and its mirror image, over all ε >= 0; between two points of a grid the
        # line of the left one, with the δ of the right one, is above all lines between.
        epsilon = np.linspace(0, 8, 129)
        below = np.asarray(self.below(epsilon))
        low, high = epsilon[:-1], np.append(below[1:-1], 0.0)
        for alpha in (1e-3, 0.03, 0.2, 0.5, 0.8, 0.97):
            steep = np.append(1 - high - np.exp(low) * alpha, 1 - np.exp(epsilon[-1]) * alpha)
            flat = np.append(np.exp(-low) * (1 - high - alpha), np.exp(-epsilon[-1]))
            assert kind.f(alpha) <= max(0.0, steep.max(), flat.max()) + self.ROOM

    def test_epsilon_and_delta_are_inverse_to_each_other(self, kind):
        for delta in (1e-40, 1e-15, 1e-12, 1e-9, 1e-5, 1e-2, 0.3):
            epsilon = kind.epsilon(delta)
            assert epsilon >= 0 and kind.delta(epsilon) <= delta
            if epsilon > 0:
                assert kind.delta(epsilon * (1 - 1e-6)) > delta * (1 - 1e-9), "epsilon must be the smallest"
        assert np.all(np.diff(kind.epsilon([1e-30, 1e-13, 1e-10, 1e-5, 1e-2])) <= 0)

    def test_f_and_delta_describe_one_curve(self, kind):
        alpha = np.linspace(0.01, 0.99, 25)
        epsilon = np.linspace(-12, 12, 1201)
        envelope = np.max(1 - kind.delta(epsilon) - np.exp(epsilon) * alpha[:, None], axis=1)
        np.testing.assert_allclose(kind.f(alpha), np.maximum(envelope, 0), atol=2e-4)

    def test_renyi_grows_and_its_conversion_is_not_below_the_truth(self, kind):
        orders = np.array([1.1, 1.5, 2.0, 4.0, 8.0, 16.0])
        values = kind.renyi(orders)
        assert np.all(values >= 0) and np.all(np.diff(values) >= 0)
        for delta in (1e-9, 1e-5):
            epsilon = float(np.min(values + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)))
            if np.isfinite(epsilon) and epsilon > 0:
                assert self.below(epsilon) <= delta * (1 + self.ROOM)

    def test_composition(self, kind):
        assert kind.compose(Gaussian(0.0)).epsilon(1e-5) >= kind.epsilon(1e-5) * (1 - 1e-12)
        assert kind.compose(Gaussian(0.0)).epsilon(1e-5) <= kind.epsilon(1e-5) * 1.03 + 1e-3
        twice, other = kind.compose(kind), kind.compose(Gaussian(0.8))
        alpha = np.linspace(0.02, 0.98, 9)
        for more in (twice, other):
            assert more.epsilon(1e-5) > kind.epsilon(1e-5)
            assert np.all(more.f(alpha) <= kind.f(alpha) + 1e-9)
            assert np.all(more.renyi([1.5, 3.0]) >= kind.renyi([1.5, 3.0]))
        swapped = Gaussian(0.8).compose(kind)
        assert swapped.epsilon(1e-5) == pytest.approx(other.epsilon(1e-5), rel=1e-9)
        assert other.epsilon(1e-5) >= Gaussian(0.8).epsilon(1e-5)

    def test_groups(self, kind):
        alpha = np.linspace(0.02, 0.98, 9)
        one, two, four = kind.group(1), kind.group(2), kind.group(4)
        assert one.isclose(kind)
        for small, large in ((one, two), (two, four)):
            assert large.epsilon(1e-5) > small.epsilon(1e-5)
            assert np.all(large.f(alpha) <= small.f(alpha) + 1e-12)
            assert large.renyi(1.5) > small.renyi(1.5)
        # f∘f is the definition; both sides are lower bounds, by tables of different width.
        np.testing.assert_allclose(two.f(alpha), kind.f(1 - kind.f(alpha)), atol=1e-4)
        # δ of the group comes by another way: its lines stay below.
        epsilon = np.linspace(0, 6, 25)
        lines = 1 - two.delta(epsilon)[:, None] - np.exp(epsilon)[:, None] * alpha
        assert np.all(lines <= kind.f(1 - kind.f(alpha)) + 1e-4)

    def test_equality_within_a_tolerance(self, kind):
        assert kind.isclose(kind) and kind.isclose(self.make())
        assert not kind.isclose(kind.compose(Gaussian(0.3)), 1e-3)
        assert kind.isclose(kind.compose(Gaussian(0.3)), 0.5)

    def test_plot(self, kind):
        axes = kind.plot(label="me", gaussians=(0.5, 2.0), points=40, color="red")
        drawn = {line.get_label(): line for line in axes.get_lines()}
        alpha, f = drawn["me"].get_data()
        assert np.array_equal(f, kind.f(alpha)) and alpha[0] == 0 and alpha[-1] == 1 and alpha.size > 40
        assert drawn["me"].get_color() == "red" and axes.get_xlabel() == "type I error α"
        dashed = [line.get_data() for line in axes.get_lines() if line.get_linestyle() == "--"]
        assert len(dashed) == 2 and np.allclose(dashed[1][1], Gaussian(2.0).f(dashed[1][0]))
        assert kind.plot(axes) is axes and len(axes.get_lines()) > len(drawn)
        matplotlib.pyplot.close(axes.figure)

    def test_pitfall_23_asking_twice_gives_the_same(self, kind):
        fresh = self.make()
        first = fresh.epsilon(1e-5), fresh.delta(1.0), fresh.f(0.2), fresh.renyi(2.0)
        kind.f([0.1, 0.9]), kind.delta(-3.0), kind.renyi(40.0), kind.epsilon(1e-30)
        assert (kind.epsilon(1e-5), kind.delta(1.0), kind.f(0.2), kind.renyi(2.0)) == first
