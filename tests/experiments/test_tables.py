"""What is printed and drawn of the results."""

import pytest

from tests.experiments import helpers
from tfdpbc.experiments import groups, registry, runner, tables
from tfdpbc.experiments.results import Results

SCALE = runner.Scale(epochs=3, seeds=2)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of results that were written, not trained: sigma=0.5 with two seeds, sigma=2.5 with one."""
    with helpers.small() as small:
        results = Results(tmp_path_factory.mktemp("results"))
        for setting, seed, last in (
            (small.settings[0], 0, 60.0),
            (small.settings[0], 1, 70.0),
            (small.settings[1], 0, 48.0),
        ):
            history = [{"epoch": e, "accuracy": last - 10 * (3 - e), "loss": 1.0} for e in (1, 2, 3)]
            results.add(SCALE.run(setting, seed), history, num_private=180)
        yield runner.summarise(small, small.settings, SCALE, results, 1e-5)


def line_of(text, start):
    (line,) = (line for line in text.splitlines() if line.startswith(start))
    return line


def test_both_truths_are_printed(rows):
    text = tables.text(helpers.SMALL, rows, {"large": "too large"}, 1e-5)
    assert line_of(text, "b-small (paper B, Section 0)")
    assert "65.00 % ± 7.07 (2 seeds)" in line_of(text, "sigma=0.5")
    assert "50.38 %  48.00 %" in line_of(text, "sigma=2.5") and "* (G_0.52)" in line_of(text, "sigma=2.5")
    assert line_of(text, "no-dp").split()[1:3] == ["–", "–"] and "no privacy" in line_of(text, "no-dp")
    assert line_of(text, "large: not trained: too large")
    assert "not certified" in line_of(text, "*:") and "certified, at the paper's scale" in line_of(text, "L:")
    assert "Released model of 2 of 3 settings: no guarantee" in text
    assert "hold only against those who do not know" in line_of(text, "Seeds: 2")
    assert "ε of this run" in text  # 3 of 50 epochs


def test_pictures(rows):
    found = tables.pictures(helpers.SMALL, rows)
    assert set(found) == {"by-epoch.svg", "sweep-1.svg"} and all(b"<svg" in content for content in found.values())
    assert set(tables.pictures(helpers.SMALL, rows[1:], kind="png")) == {"by-epoch.png"}  # one point is no sweep
    assert tables.pictures(helpers.SMALL, rows[2:]) == {}


def test_groups():
    rows = groups.table(1e-5, epochs=1, examples=640, group_sizes=(1, 4))
    text = tables.groups_text(registry.get("a-groups"), rows, 1e-5)
    assert line_of(text, "shuffling, batch (bound proven)") and line_of(
        text, "subsampling, batch (bound only as N grows)"
    )
    assert text.count("   4  ") == 5
    assert b"<svg" in tables.groups_picture(rows)["groups.svg"]
