"""Compiled programs: used where they fit, and never without a way back to the source."""

import os
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.format import BINARIES, add_binaries, program_key, write_bundle
from retune.bundle.runtime.module import Module
from retune.cli.main import run_command
from retune.core.errors import RecordError
from retune.device.opencl.binaries import Binaries, key_of, trim
from retune.device.opencl.runtime import Device, open_device
from tests.support.bundle_fixtures import make_plan

TEXT = "kernel void twice(global int *x) { x[get_global_id(0)] *= 2; }"


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def twice(device: Device, binaries: Binaries) -> tuple[int, int, int]:
    """How many programs came from bundle, cache and source, once the kernel was right."""
    with device.compiled(binaries):
        program = device.build(TEXT)
        memory = device.upload(np.arange(4, dtype=np.int32))
        device.enqueue([device.prepare(program, "twice", [memory], (4, 1, 1), (1, 1, 1))])
        device.finish()
    out = np.empty(4, np.int32)
    device.read_into(memory, out)
    assert out.tolist() == [0, 2, 4, 6]
    found = binaries.report()
    return found.given, found.cached, found.compiled


def test_a_program_is_compiled_once(device: Device, tmp_path: Path):
    first = Binaries(folder=tmp_path / "programs", collects=True)
    assert twice(device, first) == (0, 0, 1)
    again = Binaries(folder=tmp_path / "programs")
    assert twice(device, again) == (0, 1, 0) and again.report().reasons == ()
    assert twice(device, Binaries(given=first.kept)) == (1, 0, 0)
    with device.compiled(Binaries(folder=tmp_path / "programs")) as _:
        device.build(TEXT, options=["-DOTHER"])
    assert len(list((tmp_path / "programs").iterdir())) == 2  # options are part of the key


def test_a_program_of_a_bundle_is_not_kept_for_other_bundles(device: Device, tmp_path: Path):
    own = Binaries(collects=True)
    twice(device, own)
    assert twice(device, Binaries(given=own.kept, folder=tmp_path)) == (1, 0, 0)
    assert twice(device, Binaries(folder=tmp_path)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("collects", "cache", "origin", "wanted"),
    [
        (False, False, "source", False),
        (False, True, "source", True),
        (False, True, "cache", False),
        (True, False, "bundle", True),
    ],
)
def test_only_programs_that_are_kept_are_asked_of_the_driver(
    tmp_path: Path, collects: bool, cache: bool, origin: str, wanted: bool
):
    binaries = Binaries(folder=tmp_path if cache else None, collects=collects)
    binaries.use("key", origin)
    assert binaries.wants("key") == wanted
    binaries.keep("key", b"program")
    assert binaries.kept == ({"key": b"program"} if collects else {})


@pytest.mark.parametrize("damage", ["cut", "bit"])
def test_a_damaged_program_is_compiled_again(device: Device, tmp_path: Path, damage: str):
    twice(device, Binaries(folder=tmp_path))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content if damage == "bit" else content[:100])
    binaries = Binaries(folder=tmp_path)
    assert twice(device, binaries) == (0, 0, 1)
    (reason,) = binaries.report().reasons
    assert str(path) in reason and "made again" in reason
    assert twice(device, Binaries(folder=tmp_path)) == (0, 1, 0)


def test_a_program_that_the_driver_refuses_is_compiled(device: Device):
    own = Binaries(collects=True)
    twice(device, own)
    for bad in (b"", b"no program", bytes(1000)):
        binaries = Binaries(given=dict.fromkeys(own.kept, bad))
        assert twice(device, binaries) == (0, 0, 1)
        assert "refused the compiled program of the bundle" in binaries.report().reasons[0]


def test_a_cache_that_cannot_be_written_is_no_failure(device: Device, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    binaries = Binaries(folder=tmp_path / "file" / "programs")
    assert twice(device, binaries) == (0, 0, 1)
    assert "cannot be written" in binaries.report().reasons[0]


def test_a_cache_that_others_can_write_to_is_not_used(device: Device, tmp_path: Path):
    twice(device, Binaries(folder=tmp_path))
    tmp_path.chmod(0o777)
    binaries = Binaries(folder=tmp_path)
    assert twice(device, binaries) == (0, 0, 1)
    assert "only you can write to" in binaries.report().reasons[0]


def test_another_driver_has_another_key():
    keys = {key_of(TEXT, [], *about) for about in (("pocl", "3.0"), ("pocl", "3.1"), ("x", "3.0"))}
    assert len({*keys, key_of(TEXT, ["-DX"], "pocl", "3.0")}) == 4


def test_the_cache_forgets_what_was_not_used_for_the_longest_time(tmp_path: Path):
    binaries = Binaries(folder=tmp_path)
    for key in ("a", "b", "c"):
        binaries.keep(key, bytes(100))
    used = Binaries(folder=tmp_path)
    for path, moment in zip(sorted(tmp_path.iterdir()), (3, 1, 2), strict=True):
        os.utime(path, (moment, moment))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert trim(tmp_path, size) == 0
    assert trim(tmp_path, size - 1) == size // 3
    assert [used.candidates(key) != [] for key in ("a", "b", "c")] == [True, False, True]


@pytest.mark.filterwarnings("ignore::retune.bundle.runtime.module.BundleWarning")
def test_a_packed_bundle_brings_its_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write_bundle(make_plan(), tmp_path / "module")
    path = tmp_path / "net.zip"
    command = ["pack", str(folder), str(path), "--with-binaries", "--device", "pocl"]
    assert run_command(command) == 0
    assert "compiled for " in capsys.readouterr().err  # data alone is on stdout
    packed, plain = Module.load(path, "pocl"), Module.load(folder, "pocl")
    assert (packed.programs.given, packed.programs.compiled) == (1, 0)
    assert (plain.programs.given, plain.programs.compiled) == (0, 1)
    assert packed.plan.binaries == {}  # they are not kept in memory
    inputs = plain.random_inputs()
    for name, array in plain.run(inputs).items():
        np.testing.assert_array_equal(packed.run(inputs)[name], array)
    assert program_key(path) == program_key(folder)


def test_programs_of_a_bundle_are_checked_as_its_other_parts(tmp_path: Path):
    folder = write_bundle(make_plan(), tmp_path / "module")
    with_programs = add_binaries(folder, tmp_path / "with", {"key": b"program"})
    part = with_programs / BINARIES
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(RecordError, match=BINARIES):
        Module.load(with_programs)


def test_a_device_without_binaries_to_compile_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_bundle(make_plan(), tmp_path / "module")
    assert run_command(["pack", str(folder), str(tmp_path / "x.zip"), "--device", "pocl"]) == 2
    assert "expected --with-binaries" in capsys.readouterr().err
