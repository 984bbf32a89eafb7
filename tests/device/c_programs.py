"""Builds exported programs and runs them through the OpenCL loader that pyopencl brings along."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.export.loader import brought_link
from retune.bundle.runtime.module import Module

FLAGS = "-O1 -Wall -Wextra -Wconversion -pedantic -Werror"


def build(folder: Path, *defines: str, more: str = "", target: str = "network") -> None:
    """The target of the Makefile is built, without a warning, and linked with `more`.

    Skips where there is no compiler.
    """
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler (cc) or no make on this machine: apt-get install gcc make")
    flags = " ".join([FLAGS, *(f"-D{name}" for name in defines)])
    command = ["make", "-s", target, f"CFLAGS={flags}", f"OPENCL={more} {brought_link()}"]
    done = _run(command, folder)
    assert done.returncode == 0, done.stderr


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program's end, in its folder."""
    return _run(["./network", *arguments], folder)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def outputs_of(
    folder: Path, feeds: dict[str, np.ndarray], names: list[str], *options: str
) -> dict[str, np.ndarray]:
    """What the program makes of the inputs, through .npy files; it runs twice."""
    words: list[str] = []
    for number, (name, array) in enumerate(feeds.items()):
        np.save(folder / f"in{number}.npy", array)
        words += ["--input", f"{name}=in{number}.npy"]
    for number, name in enumerate(names):
        words += ["--output", f"{name}=out{number}.npy"]
    done = run(folder, *words, "--runs", "2", *options)
    assert done.returncode == 0, done.stderr
    return {name: np.load(folder / f"out{number}.npy") for number, name in enumerate(names)}


def agrees(module: Module, folder: Path) -> None:
    """The program computes exactly what the module does, on random inputs."""
    feeds = module.random_inputs()
    expected = module.run(feeds)
    found = outputs_of(folder, feeds, list(expected))
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
