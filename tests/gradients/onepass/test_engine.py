"""The one-pass engine keeps the engine contract, leaves the model alone, and refuses what it cannot compute."""

import keras
import numpy as np
import pytest

from tests import oracles
from tests.contracts.engine import EngineContract
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.onepass import OnePassEngine


class TestOnePass(EngineContract):
    def engine(self, function, algorithm, s, blocks, num_blocks, k):
        return OnePassEngine(function, algorithm, s, blocks, num_blocks, contributions_per_pass=k)

    def test_an_unused_weight_has_gradient_zero(self):
        """As in the contract, with a sum that treats rows on their own; the contract's adds up rows and is refused."""
        with pytest.raises(IncompatibleModel, match="operation .* may mix rows"):
            super().test_an_unused_weight_has_gradient_zero()
        inputs = keras.Input((6,))
        unused = keras.layers.Dense(2, name="unused")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(inputs) + 0 * keras.ops.sum(unused, -1, keepdims=True))
        x, y = oracles.blobs(2)
        norms, total = self.compute(model, x, y, [[0], [1]])
        assert np.isfinite(norms).all()
        position = [v.path.startswith("unused") for v in model.trainable_variables].index(True)
        assert (total[position] == 0).all()
