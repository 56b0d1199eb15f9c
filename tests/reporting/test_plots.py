"""Curves of an experiment: points that are there are drawn, those that are not are left out."""

import re

import pytest

from tfdpbc.reporting import plots

SERIES = {"got": [(1.0, 50.0, 2.0), (2.0, 60.0, None)], "other": [(1.0, float("nan"), None), (2.0, 40.0, None)]}


def test_curves_are_text_with_both_axes_and_all_labels():
    page = plots.curves(SERIES, "batch size", "accuracy (%)", marks={"claimed": [(1.0, 55.0)]}, log=True).decode()
    comments = set(re.findall(r"<!-- (.*?) -->", page))  # matplotlib writes each text it draws as a comment
    assert {"batch size", "accuracy (%)", "got", "other", "claimed"} <= comments


@pytest.mark.parametrize("kind, start", [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_kinds(kind, start):
    assert plots.curves(SERIES, "x", "y", kind=kind).startswith(start)


def test_one_series_needs_no_legend_and_no_points_no_line():
    page = plots.curves({"alone": [(1.0, 2.0, None)]}, "x", "y").decode()
    assert "<!-- alone -->" not in page
    assert "<svg" in plots.curves({"none": []}, "x", "y").decode()


def test_the_same_results_draw_the_same_picture():
    first, second = (plots.curves(SERIES, "x", "y") for _ in range(2))
    assert b"<dc:date>" not in first and len(first) == len(second)
