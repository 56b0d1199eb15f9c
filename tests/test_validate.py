"""Argument checks: what passes, in which type, and what the refusal says."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdpbc import _validate


def test_the_message_names_argument_expectation_and_value():
    with pytest.raises(ValueError, match=r"^norm must be a finite number > 0; got norm=-1\.0$"):
        _validate.number("norm", -1.0, above=0)
    with pytest.raises(KeyError):
        _validate.fail("key", "known", 3, KeyError)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int8(1), np.float64(1), Fraction(1)])
def test_numbers_come_back_as_float(value):
    assert _validate.number("x", value) == 1.0
    assert type(_validate.number("x", value)) is float


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, [1.0], np.ones(1), np.array(1.0)])
def test_not_a_number(value):
    """A bool is never a number, nor is text, an array or nothing."""
    with pytest.raises(TypeError, match="x must be a finite number"):
        _validate.number("x", value)


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), np.nan])
def test_nan_never_passes(value):
    for options in ({}, {"finite": False}, {"at_least": 0.0, "finite": False}, {"below": 1.0}):
        with pytest.raises(ValueError, match="x must be"):
            _validate.number("x", value, **options)


def test_infinity_passes_only_where_it_is_let_in():
    with pytest.raises(ValueError, match="x must be a finite number; got x=inf"):
        _validate.number("x", math.inf)
    assert _validate.number("x", math.inf, finite=False) == math.inf
    with pytest.raises(ValueError, match="x must be a number > 0; got x=-inf"):
        _validate.number("x", -math.inf, above=0, finite=False)


# How each end is meant, apart from the implementation.
ENDS = {"above": "__gt__", "at_least": "__ge__", "below": "__lt__", "at_most": "__le__"}


@given(
    st.sampled_from([None, "above", "at_least"]),
    st.sampled_from([None, "below", "at_most"]),
    st.integers(-3, 3),
    st.integers(-3, 3),
    st.integers(-8, 8).map(lambda i: i / 2),
)
def test_ends(low, high, low_value, high_value, value):
    options = {end: at for end, at in ((low, low_value), (high, high_value)) if end}
    if all(getattr(value, ENDS[end])(float(at)) for end, at in options.items()):
        assert _validate.number("x", value, **options) == value
    else:
        with pytest.raises(ValueError, match="x must be a finite number") as caught:
            _validate.number("x", value, **options)
        for end, at in options.items():
            sign = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}[end]
            assert f" {sign} {at}" in str(caught.value)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_come_back_as_int(value):
    assert type(_validate.integer("n", value, at_least=3, at_most=3)) is int


@pytest.mark.parametrize("value", [3.0, np.float64(3), True, np.False_, "3", None, math.nan, math.inf])
def test_not_an_integer(value):
    with pytest.raises(TypeError, match=r"n must be an integer >= 1; got n="):
        _validate.integer("n", value, at_least=1)


@pytest.mark.parametrize(("value", "passes"), [(0, False), (1, True), (5, True), (6, False)])
def test_integer_ends(value, passes):
    if passes:
        assert _validate.integer("n", value, at_least=1, at_most=5) == value
    else:
        with pytest.raises(ValueError, match=f"n must be an integer >= 1 and <= 5; got n={value}"):
            _validate.integer("n", value, at_least=1, at_most=5)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("one", [True, False])
def test_probabilities(zero, one):
    assert _validate.probability("p", 0.5, zero=zero, one=one) == 0.5
    allowed = {0: zero, 1: one, -1e-9: False, 1 + 1e-9: False, math.nan: False}
    for value, passes in allowed.items():
        if passes:
            assert _validate.probability("p", value, zero=zero, one=one) == value
        else:
            with pytest.raises(ValueError, match="p must be a finite number"):
                _validate.probability("p", value, zero=zero, one=one)


def test_choice_and_instance():
    assert _validate.choice("mode", "a", iter(["a", "b"])) == "a"
    with pytest.raises(ValueError, match="mode must be one of 'a', 'b'; got mode='c'"):
        _validate.choice("mode", "c", ("a", "b"))
    assert _validate.instance("x", 1, int, "an int") == 1
    with pytest.raises(TypeError, match="x must be an int; got x='1'"):
        _validate.instance("x", "1", int, "an int")
