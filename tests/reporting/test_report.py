"""The report: made from files alone, true to them, in one page that needs no network."""

import re

import pytest

from tfdpbc.errors import RunFolderError
from tfdpbc.reporting.report import NOT_COVERED, write_report
from tfdpbc.reporting.run_folder import RunFolder

GUARANTEE = {
    "sampling": "poisson",
    "neighbouring": "add-remove",
    "adversary": "sees every noisy update",
    "noise_multiplier": 1.25,
    "rounds": 20,
    "delta": 1e-5,
    "epsilon": 2.5,
    "mu": None,
    "group_size": 1,
    "covers": {"covered": ["every noisy update"], "not_covered": ["training loss & <metrics>"]},
    "warnings": [],
    "versions": {"tfdpbc": "0.1.0"},
}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run-7", {"dataset": "<glyphs>", "num_examples": 2000})
    folder.write_guarantee(GUARANTEE)
    folder.write_history(
        [
            {"epoch": 1, "accuracy": 0.5, "loss": 1.5, "epsilon": 1.75, "val_accuracy": 0.4, "val_loss": 1.6},
            {"epoch": 2, "accuracy": 0.75, "loss": 0.5, "epsilon": 2.5, "val_accuracy": 0.7375, "val_loss": 0.6},
        ]
    )
    folder.write_trade_off([(0.0, 1.0), (0.5, 0.25), (1.0, 0.0)])
    return folder


def page(folder):
    write_report(folder)
    return folder.report.read_text(encoding="utf-8")


def test_report_says_what_the_files_say(folder):
    text = page(folder)
    assert "run-7" in text
    assert "(ε = 2.500, δ = 1e-05)-differential privacy" in text
    assert "one example more than the other" in text and "sees every noisy update" in text
    assert "0.7375" in text
    assert "training loss &amp; &lt;metrics&gt;" in text and "&lt;glyphs&gt;" in text
    assert text.count("<svg") == 4  # accuracy, loss, epsilon, trade-off


def test_report_needs_no_network(folder):
    # XML namespaces are names, nothing fetches them.
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page(folder))
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "<script" not in text and "$" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.S)


def test_pitfall_22_training_loss_is_said_to_be_uncovered(folder):
    """pitfall 22"""
    assert NOT_COVERED in page(folder)


def test_pitfall_28_warnings_and_relation_are_shown(folder):
    """pitfall 28: neighbouring, adversary, delta are named and the plan's warnings shown."""
    folder.write_guarantee(GUARANTEE | {"warnings": ["Warning: ε = 11 > 10 says little."]})
    text = page(folder)
    assert '<p class="caution">Warning: ε = 11 &gt; 10 says little.</p>' in text
    for word in ("add-remove", "adversary", "delta"):
        assert word in text


def test_void_guarantee_is_not_dressed_up(folder):
    covers = {"covered": [], "not_covered": ["moving statistics hold raw data"]}
    folder.write_guarantee(GUARANTEE | {"epsilon": None, "covers": covers})
    text = page(folder)
    assert "No guarantee: moving statistics hold raw data." in text
    assert "-differential privacy" not in text


def test_history_without_validation_or_epoch(folder):
    folder.write_history([{"epoch": 1, "loss": 2.0}])
    assert page(folder).count("<svg") == 2  # loss, trade-off
    folder.write_history([])
    assert "No epoch has ended." in page(folder)


def test_damaged_guarantee_writes_no_report(folder):
    folder.write_guarantee({"epsilon": 1.0})
    with pytest.raises(RunFolderError, match=r"guarantee.json is damaged"):
        write_report(folder)
    assert not folder.report.exists()
