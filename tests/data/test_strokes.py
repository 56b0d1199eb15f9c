"""Stroke templates: even sampling that is linear in the control points."""

import numpy as np
import pytest

from tfdpbc.data import strokes

TEMPLATES = strokes.templates()


def test_every_digit_has_variants():
    digits, counts = np.unique(TEMPLATES.digit, return_counts=True)
    np.testing.assert_array_equal(digits, np.arange(10))
    assert counts.min() >= 2
    assert (np.diff(TEMPLATES.digit) >= 0).all()  # glyphs looks variants up by bisection


def test_points_are_near_the_box_and_close_together():
    points = TEMPLATES.sampling @ TEMPLATES.controls
    assert points.shape == (len(TEMPLATES.digit), strokes.POINTS, 2)
    assert np.abs(points).max() < 1.1
    # At 10 pixels per unit the points of a stroke stand at most 1.3 pixels apart: less than two pen widths of 0.75.
    assert TEMPLATES.lengths.max() * 10 < 1.5


def test_sampling_commutes_with_affine_maps():
    np.testing.assert_allclose(TEMPLATES.sampling.sum(-1), 1, atol=1e-5)


def test_straight_one():
    points = (TEMPLATES.sampling @ TEMPLATES.controls)[TEMPLATES.digit == 1][0]
    np.testing.assert_allclose(points[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose(points[:, 1], np.linspace(-1, 1, strokes.POINTS), atol=0.01)
    assert TEMPLATES.lengths[TEMPLATES.digit == 1][0].sum() == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize("smooth", [True, False])
def test_curves_pass_through_their_control_points(smooth):
    controls = np.random.default_rng(0).normal(size=(6, 2))
    curve = strokes._matrix(smooth, 6) @ controls
    distances = np.linalg.norm(curve[:, None] - controls, axis=-1).min(0)
    assert distances.max() < 0.05
    np.testing.assert_allclose(curve[[0, -1]], controls[[0, -1]], atol=1e-9)


def test_smooth_strokes_have_no_corners():
    controls = np.random.default_rng(1).normal(size=(5, 2))

    def sharpest(smooth):
        steps = np.diff(strokes._matrix(smooth, 5) @ controls, axis=0)
        return np.abs(np.diff(steps, axis=0)).max()

    assert sharpest(True) < 0.1 * sharpest(False)
