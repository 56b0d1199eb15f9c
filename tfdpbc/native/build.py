"""Builds the C++ operations for the TensorFlow that is installed: `python -m tfdpbc.native.build`.

`make install` runs it. It needs g++ or another C++17 compiler (CXX names it) and takes under a minute. Exit status 0 where
there is no compiler: the package works without.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import click

VARIANTS = {"Avx512": ("-mavx512f", "-mfma"), "Avx2": ("-mavx2", "-mfma")}
KERNELS = {
    "conv": ("ConvGradients",),
    "noise": ("AddGaussian", "-fno-math-errno", "-fno-trapping-math"),
    "squares": ("SumOfSquares",),
}
"""Source → its function, and what the compiler may take for granted to make vector instructions of loops."""


def build() -> pathlib.Path:
    """Compiles the operations and returns their file.

    Raises:
      FileNotFoundError: there is no compiler.
      RuntimeError: the compiler failed; its last words are in the message.
    """
    import tensorflow as tf

    from tfdpbc import native

    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError(f"no compiler {os.environ.get('CXX', 'g++')!r} (CXX names another)")
    here, x86 = pathlib.Path(__file__).parent, platform.machine().lower() in ("x86_64", "amd64")
    common = [compiler, "-std=c++17", "-fPIC", "-w", *(["-DTFDPBC_X86"] if x86 else [])]
    with tempfile.TemporaryDirectory() as scratch:
        objects = []
        for variant, flags in {"Generic": (), **(VARIANTS if x86 else {})}.items():
            for kernel, (function, *granted) in KERNELS.items():
                objects.append(f"{scratch}/{kernel}{variant}.o")
                source = str(here / f"{kernel}_kernel.cc")
                what = [f"-DTFDPBC_VARIANT={function}{variant}", "-c", source, "-o", objects[-1]]
                _run([*common, "-O3", *flags, *granted, *what])
        built, sources = f"{scratch}/native.so", [str(here / f"{kernel}.cc") for kernel in KERNELS]
        tensorflow = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
        _run([*common, "-O2", "-shared", *sources, *objects, "-o", built, *tensorflow])
        # Moved into place at once: a process that loads it never sees a part of it.
        beside = native.library().with_suffix(f".{os.getpid()}")
        shutil.copy(built, beside)
        os.replace(beside, native.library())
    return native.library()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} ... failed: {done.stderr[-2000:]}")


def main() -> None:
    try:
        click.echo(f"built {build()}")
    except FileNotFoundError as error:
        click.echo(f"not built ({error}): TensorFlow's own operations do it", err=True)


if __name__ == "__main__":
    main()
