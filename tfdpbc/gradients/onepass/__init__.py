"""The one-pass gradient engine: individual clipping at nearly the price of training without privacy."""

from tfdpbc.gradients.onepass.engine import OnePassEngine
from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rowwise import rowwise
from tfdpbc.gradients.onepass.support import unsupported
from tfdpbc.gradients.onepass.terms import Materialized, Outer, Term, total

__all__ = [
    "Call",
    "LayerRule",
    "Materialized",
    "OnePassEngine",
    "Outer",
    "Term",
    "register",
    "rowwise",
    "total",
    "unsupported",
]
