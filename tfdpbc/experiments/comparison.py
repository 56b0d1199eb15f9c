"""The same model and data under several plans, for `tfdpbc compare --train`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from tfdpbc import models
from tfdpbc.clipping.blocks import layers_of
from tfdpbc.compatibility import batch_normalizations
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import PrivacyPlan
from tfdpbc.random import Streams


@dataclasses.dataclass(frozen=True)
class Contest:
    """What all plans are compared on.

    Attributes:
      train, test: data sets of `data.load`.
      model: a name for `models.build`.
      normalization: of the model, or None for its own.
      learning_rates: each plan is trained with each; what suits it depends on its signal-to-noise ratio.
      momentum: of SGD.
      seeds: how many trainings, with seeds 0, 1, ...
    """

    train: Any
    test: Any
    model: str
    normalization: str | None
    learning_rates: tuple[float, ...]
    momentum: float
    seeds: int

    def build(self, seed: int = 0) -> keras.Model:
        options = {} if self.normalization is None else {"normalization": self.normalization}
        weights = int(Streams(seed).generator("init").integers(2**31))
        return models.build(self.model, self.train.x.shape[1:], self.train.num_classes, seed=weights, **options)

    def size(self) -> tuple[int, int]:
        """Trainable weights d and layers L of the model."""
        net = self.build()
        return sum(math.prod(v.shape) for v in net.trainable_variables), len(layers_of(net))

    def accuracy(self, plan: PrivacyPlan, learning_rate: float, seed: int) -> float:
        """Test accuracy in percent after training under `plan`.

        Batch normalisation stores nothing (``statistics="batch"``), so that the guarantee is that of the model.

        Raises:
          IncompatibleModel: the plan cannot train the model.
        """
        net = self.build(seed)
        statistics = "batch" if batch_normalizations(net) else None
        model = PrivateModel(net, plan, statistics=statistics, seed=seed)
        model.compile(
            optimizer=keras.optimizers.SGD(learning_rate, momentum=self.momentum),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        model.fit(self.train.scaled(), self.train.y, verbose=0)
        found = model.evaluate(self.test.scaled(), self.test.y, batch_size=1000, verbose=0, return_dict=True)
        return 100 * found["accuracy"]

    def best(self, plan: PrivacyPlan) -> dict[str, Any]:
        """The learning rate of the highest mean accuracy: `learning_rate`, mean and deviation of `accuracy`, and `tried`."""
        tried = []
        for rate in self.learning_rates:
            reached = np.array([self.accuracy(plan, rate, seed) for seed in range(self.seeds)])
            std = float(reached.std(ddof=1)) if self.seeds > 1 else None
            tried.append({"learning_rate": rate, "accuracy": {"mean": float(reached.mean()), "std": std}})
        keras.utils.clear_session(free_memory=True)
        return {**max(tried, key=lambda one: one["accuracy"]["mean"]), "tried": tried}


def signal_to_noise(plan: PrivacyPlan, num_parameters: int) -> float:
    """m √blocks / (√d f σ): norm of the clipped sum over that of its noise, in one round, at the best.

    At the best all contributions agree, every block is at its clip norm, and the blocks' clip norms are equal (f is the
    sampling's sensitivity factor).
    """
    noise = plan.update_noise_multiplier * plan.sampling.sensitivity_factor
    return plan.divisor * math.sqrt(plan.clipping.composed_blocks()) / (math.sqrt(num_parameters) * noise)
