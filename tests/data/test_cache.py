"""The cache only saves time: no state of it may change what comes back or stop the work."""

import os

import numpy as np
import pytest

from tfdpbc.data import cache

TRUTH = {"x": np.arange(60, dtype=np.uint8).reshape(20, 3), "y": np.arange(20)}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDPBC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetch(version=1):
    """Whether the arrays had to be made, after checking what came back."""
    calls = []

    def make():
        calls.append(1)
        return dict(TRUTH)

    arrays = cache.fetch("truth", version, make, lambda a: a["x"].shape == (20, 3) and a["y"].shape == (20,))
    assert set(arrays) == {"x", "y"}
    for key, value in TRUTH.items():
        np.testing.assert_array_equal(arrays[key], value)
        assert arrays[key].dtype == value.dtype
    return bool(calls)


def test_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TFDPBC_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == tmp_path / ".cache" / "tfdpbc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder() == tmp_path / ".cache" / "tfdpbc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "tfdpbc"
    monkeypatch.setenv("TFDPBC_CACHE", str(tmp_path / "own"))
    assert cache.folder() == tmp_path / "own"


def test_made_once(home):
    assert fetch() and not fetch() and not fetch()
    assert os.listdir(home) == ["truth.npz"]  # no temporary file stays behind


def test_other_version_is_replaced(home):
    assert fetch(1) and fetch(2) and not fetch(2) and fetch(1)
    assert os.listdir(home) == ["truth.npz"]


def test_any_damaged_byte(home):
    """Every byte counts, or does no harm: archives damaged at any place give the truth."""
    fetch()
    path = home / "truth.npz"
    whole = path.read_bytes()
    made = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        made += fetch()
    assert made > 30  # the data bytes at least are guarded


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_garbage(home, content):
    fetch()
    path = home / "truth.npz"
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    assert fetch() and not fetch()


def test_wrong_arrays(home):
    home.mkdir()
    for wrong in ({"x": TRUTH["x"][:5], "y": TRUTH["y"]}, {"x": TRUTH["x"]}, {"x": np.array([None]), "y": TRUTH["y"]}):
        np.savez(home / "truth.npz", version=1, **wrong)
        assert fetch()


def test_folder_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TFDPBC_CACHE", str(tmp_path / "file" / "cache"))
    assert fetch() and fetch()


def test_path_is_a_folder(home):
    (home / "truth.npz").mkdir(parents=True)
    assert fetch()
    assert os.listdir(home) == ["truth.npz"]


def test_failed_write_leaves_the_old_file(home, monkeypatch):
    fetch(1)
    before = (home / "truth.npz").read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    assert fetch(2)
    assert os.listdir(home) == ["truth.npz"] and (home / "truth.npz").read_bytes() == before
