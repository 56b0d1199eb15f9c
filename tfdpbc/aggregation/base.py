"""The plain sum, and what every aggregation is asked."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Sum:
    r"""The plain sum :math:`U = \sum_h [a_h]_C` of Algorithm 1.

    Formal guarantee: one changed contribution moves the sum by no more than it moves the contribution itself, so the
    sensitivity is that of the clipping times the sampling's factor.
    """

    name: ClassVar[str] = "sum"
    whole_round: ClassVar[bool] = False
    """Whether what becomes of a contribution depends on all others of the logical round (`training.whole_round`)."""
    tested: ClassVar[bool] = False
    """Whether a round is released in one of two ways, after a private test whose outcome is public."""

    def weights(self, clip_weights: Any, valid: Any) -> Any:
        """Final weights ``[m, L]`` from the clipping's ``[m, L]`` and the mask ``[m]`` of contributions that exist."""
        import tensorflow as tf

        return tf.where(valid[:, None], clip_weights, tf.zeros_like(clip_weights))

    def check(self, sampling: Any, clipping: Any, noise_multiplier: float, statistics: Any) -> None:
        """Refuses a plan whose guarantee is not known for this aggregation.

        Raises:
          ValueError: naming the argument of the plan and what it must be.
        """

    def void(self) -> str | None:
        """Why no noise makes a guarantee, if so."""
        return None

    def to_config(self) -> dict[str, Any]:
        """JSON-able description."""
        return {"name": self.name, **dataclasses.asdict(self)}
