"""The C++ operations may be off, or absent, without harm."""

from tfdpbc import native
from tfdpbc.native import build


def test_off_and_the_environment_switch_it_off(monkeypatch):
    with native.off():
        assert native.operations() is None
        with native.off():
            pass
        assert native.operations() is None
    monkeypatch.setenv("TFDPBC_NATIVE", "0")
    assert native.operations() is None


def test_no_compiler_is_no_error(monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.main()
    assert "not built (no compiler 'no-such-compiler'" in capsys.readouterr().err
