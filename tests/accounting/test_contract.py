"""Every kind of trade-off function keeps the one contract: Gaussian, mixtures, subsampled, composed, grouped."""

import functools

import numpy as np

from tests.accounting import oracles
from tests.contracts.trade_off import TradeOffContract
from tfdpbc.accounting import Gaussian, GaussianMixture, Grouped, fixed_size, poisson, shuffling, subsampling


def gaussian_delta(mu, epsilon):
    return oracles.gaussian_delta(np.asarray(epsilon), np.float64(mu))


@functools.lru_cache(maxsize=8)
def loss(weights, sigma, kind):
    return oracles.Loss(np.array(weights), sigma, kind)


def inverted(weights, sigma, rounds, *kinds):
    return lambda epsilon: np.max([loss(weights, sigma, kind).delta(epsilon, rounds) for kind in kinds], axis=0)


class TestGaussian(TradeOffContract):
    def make(self):
        return Gaussian(0.9)

    def below(self, epsilon):
        return gaussian_delta(0.9, epsilon)


class TestShuffledMixture(TradeOffContract):
    LAW = (60, 2, 5, 9, 3)

    def make(self):
        return GaussianMixture.of(shuffling(*self.LAW), 4.0)

    def below(self, epsilon):
        return oracles.mixture_delta(oracles.c_squared("shuffling", *self.LAW), 4.0, epsilon)


class TestSubsampledMixture(TradeOffContract):
    LAW = (100, 2, 5, 8, 2)

    def make(self):
        return GaussianMixture.of(subsampling(*self.LAW), 2.0)

    def below(self, epsilon):
        return oracles.mixture_delta(oracles.c_squared("subsampling", *self.LAW), 2.0, epsilon)


class TestPoisson(TradeOffContract):
    def make(self):
        return poisson(0.05, 1.0, 200)

    def below(self, epsilon):
        return inverted(tuple(oracles.binomial(1, 0.05)), 1.0, 200, "remove", "add")(epsilon)


class TestPoissonGroup(TradeOffContract):
    def make(self):
        return poisson(0.02, 1.5, 150, 3)

    def below(self, epsilon):
        return inverted(tuple(oracles.binomial(3, 0.02)), 1.5, 150, "remove", "add")(epsilon)


class TestFixedSize(TradeOffContract):
    def make(self):
        return fixed_size(0.05, 1.0, 150)

    def below(self, epsilon):
        return inverted(tuple(oracles.binomial(1, 0.05)), 1.0, 150, "symmetric")(epsilon)


class TestComposed(TradeOffContract):
    """A composition on one lattice; below it: either of its parts, and for equal parts the whole."""

    def make(self):
        return fixed_size(0.05, 1.0, 75).compose(fixed_size(0.05, 1.0, 75))

    def below(self, epsilon):
        return inverted(tuple(oracles.binomial(1, 0.05)), 1.0, 150, "symmetric")(epsilon)


class TestComposedWithGaussian(TradeOffContract):
    """Two kinds on one lattice; below it: either of its parts."""

    def make(self):
        return poisson(0.05, 1.0, 100).compose(Gaussian(0.5))

    def below(self, epsilon):
        rounds = inverted(tuple(oracles.binomial(1, 0.05)), 1.0, 100, "remove", "add")
        return np.maximum(rounds(epsilon), gaussian_delta(0.5, epsilon))


class TestGroupedGaussian(TradeOffContract):
    def make(self):
        return Grouped(Gaussian(0.4), 3)

    def below(self, epsilon):
        return gaussian_delta(1.2, epsilon)


class TestGroupedSubsampling(TradeOffContract):
    def make(self):
        return fixed_size(0.02, 2.0, 150).group(2)

    def below(self, epsilon):
        return inverted(tuple(oracles.binomial(1, 0.02)), 2.0, 150, "symmetric")(epsilon)
