"""The weights file: pages of a mapping that were read need not stay in memory."""

import sys
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.weights import forget_pages, map_file


def resident_file_bytes() -> int:
    """Memory of this process that is pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc states resident memory on Linux only")
def test_forgotten_pages_of_a_mapped_file_take_no_memory(tmp_path):
    size = 64 << 20
    np.arange(size // 4, dtype=np.int32).tofile(tmp_path / "data")
    before = resident_file_bytes()
    view = map_file(tmp_path / "data")
    total = int(np.frombuffer(view, np.int32).sum(dtype=np.int64))
    forget_pages(view)
    assert resident_file_bytes() < before + size // 2
    assert int(np.frombuffer(view, np.int32).sum(dtype=np.int64)) == total


def test_an_array_in_memory_stays_as_it_is():
    array = np.arange(1 << 20)
    forget_pages(array[1000:])
    forget_pages(memoryview(array))
    np.testing.assert_array_equal(array, np.arange(1 << 20))


def test_part_of_a_page_stays(tmp_path):
    np.zeros(3000, np.uint8).tofile(tmp_path / "data")
    view = map_file(tmp_path / "data")
    forget_pages(view[100:200])
    np.testing.assert_array_equal(np.frombuffer(view, np.uint8), np.zeros(3000, np.uint8))
