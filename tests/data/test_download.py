"""Downloads end, whatever the network does."""

import os
import socket
import time

import pytest

from tfdpbc.data import download
from tfdpbc.errors import DataError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_network_that_refuses(monkeypatch):
    def refuse(address, timeout):
        assert address == (download.HOST, 443)
        raise OSError("unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not download.network_allows()


def test_network_that_hangs(monkeypatch):
    """A name server that never answers has no time limit of its own."""
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: time.sleep(20))
    start = time.monotonic()
    assert not download.network_allows()
    assert time.monotonic() - start < 10


def test_network_through_a_proxy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert download.network_allows()
    assert not download.network_allows()  # the proxy is gone


def program(monkeypatch, text):
    monkeypatch.setattr(download, "_PROGRAM", text)
    monkeypatch.setattr(download, "_POLL_SECONDS", 0.05)


def test_success(monkeypatch, tmp_path, capfd):
    program(monkeypatch, "import sys, pathlib; print('noise'); pathlib.Path(sys.argv[2], sys.argv[1]).touch()")
    download.download("tiny", tmp_path / "new")
    assert (tmp_path / "new" / "tiny").exists()
    assert capfd.readouterr() == ("", "")


def test_failure(monkeypatch, tmp_path):
    program(monkeypatch, "print('noise'); raise ValueError('checksum mismatch\\nsecond line')")
    with pytest.raises(DataError, match="^the download of tiny failed: ValueError: checksum mismatch$"):
        download.download("tiny", tmp_path)


def test_stall_ends_the_child(monkeypatch, tmp_path):
    program(
        monkeypatch, "import sys, time, os; open(sys.argv[2] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    )
    monkeypatch.setattr(download, "STALL_SECONDS", 2.0)
    start = time.monotonic()
    with pytest.raises(DataError, match="stalled: nothing arrived for 2 s"):
        download.download("tiny", tmp_path)
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_slow_but_moving_is_let_go_on(monkeypatch, tmp_path):
    text = (
        "import sys, time\nf = open(sys.argv[2] + '/part', 'wb', 0)\nfor _ in range(12): f.write(b'x'); time.sleep(.3)"
    )
    program(monkeypatch, text)
    monkeypatch.setattr(download, "STALL_SECONDS", 2.5)
    download.download("tiny", tmp_path)


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        download.download("tiny", tmp_path / "file" / "sub")
