"""How the digits 0-9 are written: stroke templates, and their sampling into evenly spaced points.

A template is one way to write a digit: strokes in a box of [-1, 1] x [-1, 1], x to the right, y down. A smooth stroke
is a Catmull-Rom spline through its control points, a straight one the polyline. Both are linear in the control points,
so a template is a matrix: moving the control points of a million images and sampling their strokes is one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

POINTS = 64  # per digit; at 28 pixels neighbours then stand closer than a pen is wide
_FINE = 400  # per stroke, for measuring its length

# digit -> templates; template -> strokes; stroke -> (smooth, control points).
_TEMPLATES = {
    0: [
        [(True, "0,-1 -.55,-.6 -.68,0 -.5,.7 0,1 .5,.7 .68,0 .5,-.65 0,-1")],
        [(True, ".1,-1 -.3,-.7 -.42,0 -.3,.75 0,1 .32,.7 .42,0 .35,-.7 .1,-1")],
        [(True, ".3,-.85 -.2,-1 -.65,-.35 -.6,.5 -.1,1 .5,.75 .72,0 .5,-.75 -.15,-.95")],
    ],
    1: [
        [(False, "0,-1 0,1")],
        [(False, "-.4,-.6 .08,-1 .08,1")],
        [(False, "-.35,-.65 .05,-1 .05,1"), (False, "-.45,1 .5,1")],
    ],
    2: [
        [(True, "-.6,-.55 -.3,-.95 .25,-.95 .55,-.5 .2,.1 -.6,1"), (False, "-.6,1 .65,1")],
        [(True, "-.55,-.6 -.1,-1 .5,-.65 .3,0 -.3,.75 -.6,.75 -.45,.5 0,.8 .65,.9")],
        [(False, "-.55,-.8 -.1,-1 .45,-.85 .5,-.4 -.6,1 .6,.95")],
    ],
    3: [
        [(True, "-.55,-.75 0,-1 .5,-.65 .3,-.15 -.15,-.05"), (True, "-.15,-.05 .45,.1 .6,.55 .1,1 -.6,.75")],
        [(False, "-.5,-1 .5,-1 -.1,-.2"), (True, "-.1,-.2 .5,.05 .55,.6 .05,1 -.6,.8")],
        [(True, "-.5,-.8 .1,-1 .45,-.6 .25,-.2 -.2,0 .3,.1 .55,.5 .2,.95 -.55,.85")],
    ],
    4: [
        [(False, "-.35,-1 -.6,.2 .65,.2"), (False, ".3,-.5 .25,1")],
        [(False, ".3,1 .3,-1 -.65,.35 .65,.35")],
        [(True, "-.5,-.95 -.6,-.3 -.4,.1 .1,.1 .45,-.1"), (False, ".45,-.95 .4,1")],
    ],
    5: [
        [(False, ".55,-1 -.4,-1 -.5,-.1"), (True, "-.5,-.1 .1,-.3 .6,.25 .3,.85 -.2,1 -.6,.75")],
        [(False, "-.4,-.95 -.4,-.15"), (True, "-.4,-.15 .2,-.25 .55,.3 .2,.9 -.55,.9"), (False, "-.4,-.95 .6,-.95")],
        [(True, ".55,-.95 -.05,-.95 -.4,-.55 .1,-.15 .5,.3 .3,.85 -.2,1 -.6,.8")],
    ],
    6: [
        [(True, ".4,-.95 -.2,-.5 -.55,.3 -.3,.9 .2,.95 .5,.5 .2,.05 -.3,.25 -.5,.55")],
        [(False, ".05,-1 -.4,.2"), (True, "-.4,.2 -.45,.75 0,1 .45,.7 .35,.2 -.05,.1 -.4,.4")],
        [(True, ".5,-.75 .1,-1 -.4,-.5 -.55,.3 -.25,.95 .3,.9 .5,.45 .1,.1 -.5,.45")],
    ],
    7: [
        [(False, "-.6,-.95 .55,-.95 -.1,1")],
        [(False, "-.6,-.9 .55,-.9 -.1,1"), (False, "-.35,.1 .5,.05")],
        [(False, "-.6,-.6 -.6,-.95"), (True, "-.6,-.95 -.1,-.85 .55,-.95 .2,-.1 .05,1")],
    ],
    8: [
        [
            (True, "0,-1 -.42,-.75 -.4,-.3 0,-.08 .4,-.3 .42,-.75 0,-1"),
            (True, "0,-.08 -.5,.2 -.52,.75 0,1 .52,.75 .5,.2 0,-.08"),
        ],
        [(True, ".45,-.75 0,-1 -.45,-.7 -.3,-.25 .3,.15 .5,.65 0,1 -.5,.65 -.3,.2 .3,-.3 .45,-.75")],
    ],
    9: [
        [(True, ".45,-.4 .2,-.95 -.3,-.9 -.5,-.45 -.2,-.05 .25,-.15 .45,-.5"), (False, ".45,-.5 .35,1")],
        [(True, ".4,-.6 0,-1 -.45,-.7 -.4,-.2 .05,-.05 .4,-.55 .5,.2 .3,.8 -.1,1 -.5,.85")],
        [(True, ".5,-.85 -.1,-1 -.5,-.6 -.3,-.1 .2,-.2 .5,-.85 .3,0 -.05,1")],
    ],
}


@dataclass(frozen=True)
class Templates:
    """All templates as arrays, T of them, with up to K control points.

    Attributes:
      digit: [T], the digit that each template writes.
      controls: [T, K, 2] control points, zeros after the last.
      sampling: [T, POINTS, K]; ``sampling[t] @ controls[t]`` are the points of template t.
      lengths: [T, POINTS], the length of stroke that each point stands for.
    """

    digit: np.ndarray
    controls: np.ndarray
    sampling: np.ndarray
    lengths: np.ndarray


def templates() -> Templates:
    """Builds the arrays of all templates."""
    rows = [(digit, *_template(strokes)) for digit, variants in _TEMPLATES.items() for strokes in variants]
    most = max(len(controls) for _, controls, _, _ in rows)
    digit, controls, sampling, lengths = zip(*rows, strict=True)
    return Templates(
        np.array(digit),
        np.stack([np.pad(c, ((0, most - len(c)), (0, 0))) for c in controls]).astype(np.float32),
        np.stack([np.pad(s, ((0, 0), (0, most - s.shape[1]))) for s in sampling]).astype(np.float32),
        np.stack(lengths).astype(np.float32),
    )


def _template(strokes: list[tuple[bool, str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Control points [K, 2], sampling matrix [POINTS, K] and lengths [POINTS] of one way to write a digit."""
    controls = [np.array([point.split(",") for point in text.split()], float) for _, text in strokes]
    fine = [_matrix(smooth, len(c)) for (smooth, _), c in zip(strokes, controls, strict=True)]
    along = []
    for matrix, c in zip(fine, controls, strict=True):
        steps = np.linalg.norm(np.diff(matrix @ c, axis=0), axis=1)
        along.append(np.concatenate([[0.0], np.cumsum(steps)]))
    total = sum(a[-1] for a in along)
    shares = [int(round(POINTS * a[-1] / total)) for a in along]
    shares[int(np.argmax(shares))] += POINTS - sum(shares)  # rounding, put where it shows least
    sampling = np.zeros([POINTS, sum(map(len, controls))])
    lengths = np.zeros(POINTS)
    row = column = 0
    for matrix, a, c, share in zip(fine, along, controls, shares, strict=True):
        places = np.searchsorted(a, np.linspace(0, a[-1], share)).clip(0, len(a) - 1)
        sampling[row : row + share, column : column + len(c)] = matrix[places]
        lengths[row : row + share] = a[-1] / share
        row, column = row + share, column + len(c)
    return np.concatenate(controls), sampling, lengths


def _matrix(smooth: bool, count: int) -> np.ndarray:
    """[_FINE, count]: evaluates a Catmull-Rom spline (or polyline) of `count` control points at even parameters."""
    t = np.linspace(0, count - 1, _FINE)
    i = np.minimum(t.astype(int), count - 2)
    u = t - i
    if smooth:
        weights = [
            (-1, -u / 2 + u**2 - u**3 / 2),
            (0, 1 - 2.5 * u**2 + 1.5 * u**3),
            (1, u / 2 + 2 * u**2 - 1.5 * u**3),
            (2, -(u**2) / 2 + u**3 / 2),
        ]
    else:
        weights = [(0, 1 - u), (1, u)]
    matrix = np.zeros([_FINE, count])
    for offset, weight in weights:
        np.add.at(matrix, (np.arange(_FINE), np.clip(i + offset, 0, count - 1)), weight)
    return matrix
