"""Argument checks: one place and one message form, ``NAME must be EXPECTED; got NAME=VALUE``.

Every check returns the value in its canonical Python type. NaN never passes, a bool is never a number.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any


def fail(name: str, expected: str, value: Any, error: type[Exception] = ValueError) -> None:
    """Raises `error` in the library's one message form."""
    raise error(f"{name} must be {expected}; got {name}={value!r}")


SMALLEST_NORM = 1e-12
"""Of clipping and of what is proposed in its place: float32 squares of far smaller norms vanish."""


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = True,
) -> float:
    """Checks a real number against open (`above`, `below`) and closed (`at_least`, `at_most`) ends."""
    low = f" > {above:g}" if above is not None else f" >= {at_least:g}" if at_least is not None else ""
    high = f" < {below:g}" if below is not None else f" <= {at_most:g}" if at_most is not None else ""
    expected = ("a finite number" if finite else "a number") + low + (" and" if low and high else "") + high
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        fail(name, expected, value, TypeError)
    try:
        result = float(value)
    except OverflowError:  # an integer beyond every float
        fail(name, expected, value)
    ok = not math.isnan(result) and (not finite or math.isfinite(result))
    ok = ok and (above is None or result > above) and (at_least is None or result >= at_least)
    ok = ok and (below is None or result < below) and (at_most is None or result <= at_most)
    if not ok:
        fail(name, expected, value)
    return result


def integer(name: str, value: Any, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """Checks a whole number (numpy integers too, never a bool or a float) against closed ends."""
    low = f" >= {at_least}" if at_least is not None else ""
    high = f" <= {at_most}" if at_most is not None else ""
    expected = "an integer" + low + (" and" if low and high else "") + high
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        fail(name, expected, value, TypeError)
    result = int(value)
    if (at_least is not None and result < at_least) or (at_most is not None and result > at_most):
        fail(name, expected, value)
    return result


def probability(name: str, value: Any, *, zero: bool = False, one: bool = False) -> float:
    """Checks a probability; the ends 0 and 1 are refused unless `zero` or `one` lets them in."""
    ends = {("at_least" if zero else "above"): 0.0, ("at_most" if one else "below"): 1.0}
    return number(name, value, **ends)


def choice(name: str, value: Any, options: Iterable[Any]) -> Any:
    """Checks that `value` is one of `options`."""
    options = list(options)
    if value not in options:
        fail(name, "one of " + ", ".join(map(repr, options)), value)
    return value


def instance(name: str, value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    """Checks the type of `value`; `expected` says in words what is wanted."""
    if not isinstance(value, kinds):
        fail(name, expected, value, TypeError)
    return value
