"""Run folders: written whole or not at all, and refused in one clear line where damaged."""

import json
import os

import numpy as np
import pytest

from tfdpbc.errors import RunFolderError
from tfdpbc.reporting import run_folder
from tfdpbc.reporting.run_folder import RunFolder, check_free, to_json


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs" / "one", {"dataset": "glyphs"})


def test_create_makes_the_folder_in_one_step(folder, tmp_path):
    assert folder.config == {"format": 1, "dataset": "glyphs"}
    assert folder.checkpoint.parent.is_dir() and not folder.checkpoint.exists()
    assert RunFolder(tmp_path / "runs" / "one").config == folder.config
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_a_failed_create_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path / "one", {"dataset": object()})
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_keeps_the_file_before(folder, monkeypatch):
    folder.write_guarantee({"epsilon": 1.0})

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(run_folder.os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        folder.write_guarantee({"epsilon": 2.0})
    assert folder.read_guarantee() == {"epsilon": 1.0}
    assert sorted(os.listdir(folder.path)) == ["checkpoints", "config.json", "guarantee.json"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        folder = RunFolder.create(tmp_path / "one", {})
        assert folder.path.stat().st_mode & 0o777 == 0o755
        assert (folder.path / "config.json").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_history_round_trips_with_columns_that_come_late(folder):
    rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "val_loss": 0.125, "epsilon": 1 / 3}]
    folder.write_history(rows)
    assert folder.read_history() == rows
    assert (folder.path / "history.csv").read_text().splitlines()[0] == "epoch,loss,val_loss,epsilon"


def test_trade_off_round_trips_exactly(folder):
    curve = [(0.0, 1.0), (1e-12, 1 / 3), (1.0, 0.0)]
    folder.write_trade_off(curve)
    assert folder.read_trade_off() == curve


def test_json_is_strict():
    text = to_json(
        {"epsilon": np.float64("inf"), "mu": float("nan"), "curve": np.array([[0.0, 1.0]]), "n": np.int64(3)}
    )
    assert json.loads(text) == {"epsilon": None, "mu": None, "curve": [[0.0, 1.0]], "n": 3}


def test_check_free(folder, tmp_path):
    check_free(tmp_path / "two" / "three")
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    assert RunFolder.create(tmp_path / "empty", {}).config == {"format": 1}
    (tmp_path / "file").write_text("")
    for taken in (folder.path, tmp_path / "file"):
        with pytest.raises(RunFolderError, match="exists already"):
            check_free(taken)
    with pytest.raises(RunFolderError, match="is not a folder that can be written to"):
        check_free(tmp_path / "file" / "below")


def damage(folder, name, content):
    if content is None:
        (folder.path / name).unlink(missing_ok=True)
    else:
        (folder.path / name).write_bytes(content)


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "it has no config.json"),
        (b'{"format": 1,', "config.json is damaged: not JSON"),
        (b"[1]", "must hold one JSON object"),
        (b"{}", "must be of format 1; got format=None"),
        (b'{"format": 99}', "got format=99"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_damaged_config(folder, content, message):
    damage(folder, "config.json", content)
    with pytest.raises(RunFolderError, match=message):
        RunFolder(folder.path)


@pytest.mark.parametrize(
    "name, content, read",
    [
        ("guarantee.json", None, RunFolder.read_guarantee),
        ("guarantee.json", b"{", RunFolder.read_guarantee),
        ("history.csv", None, RunFolder.read_history),
        ("history.csv", b"epoch,loss\n1,low\n", RunFolder.read_history),
        ("history.csv", b"epoch,loss\n1,2,3\n", RunFolder.read_history),
        ("trade_off.csv", b"epoch,loss\n1,2\n", RunFolder.read_trade_off),
        ("trade_off.csv", b"alpha,f\n1,\n", RunFolder.read_trade_off),
    ],
)
def test_damaged_files(folder, name, content, read):
    damage(folder, name, content)
    with pytest.raises(RunFolderError, match=name):
        read(folder)


def test_missing_folder(tmp_path):
    with pytest.raises(RunFolderError, match="does not exist"):
        RunFolder(tmp_path / "nowhere")
