"""Facts of the processor, and PoCL's processor name, without the processor."""

import ctypes
import os
from pathlib import Path

import pytest

from retune.device.opencl import host, pocl, vendors
from tests.support.control_groups import LIMITS, write_groups


def cache(folder: Path, index: int, **values: str) -> None:
    entry = folder / f"index{index}"
    entry.mkdir(parents=True)
    for name, text in values.items():
        (entry / name).write_text(f"{text}\n")


def test_caches_are_those_of_data(tmp_path: Path):
    line = {"coherency_line_size": "64"}
    cache(tmp_path, 0, level="1", type="Data", size="48K", **line)
    cache(tmp_path, 1, level="1", type="Instruction", size="32K", **line)
    cache(tmp_path, 2, level="2", type="Unified", size="2048K", **line)
    cache(tmp_path, 3, level="3", type="Unified", size="32M", **line)
    found = host.read_caches(tmp_path)
    assert (found.l1_bytes, found.l2_bytes, found.l3_bytes) == (48 << 10, 2 << 20, 32 << 20)
    assert found.line_bytes == 64


def test_a_system_that_tells_nothing_gives_zeros(tmp_path: Path):
    assert host.read_caches(tmp_path / "none") == host.Caches()
    assert host.read_flags(tmp_path / "none") == frozenset()


def test_a_machine_is_described_by_its_processor_and_not_by_its_name(tmp_path: Path):
    cache(tmp_path / "caches", 0, level="1", type="Data", size="48K")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some Processor: 3 GHz\n")
    cores = os.cpu_count()
    described = host.describe(tmp_path / "cpuinfo", tmp_path / "caches")
    assert described == f"Some Processor: 3 GHz, {cores} cores, caches 48 KiB"
    assert "caches unknown" in host.describe(tmp_path / "none", tmp_path / "none")


def test_the_cores_of_a_process_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3}, raising=False)
    assert host.affinity(pinned=False) == "2 of 8 cores, not pinned"
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert host.affinity(pinned=True) == "8 of 8 cores, pinned"


def test_flags_are_read_on_x86_and_arm(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu avx2 fma\n")
    assert host.read_flags(info) == {"fpu", "avx2", "fma"}
    info.write_text("processor : 0\nFeatures : fp asimd\n")
    assert host.read_flags(info) == {"fp", "asimd"}


@pytest.mark.parametrize(
    ("flags", "unit"),
    [
        ("avx512f avx2 avx sse2", (512, 32)),
        ("avx2 avx sse2", (256, 16)),
        ("sse2", (128, 16)),
        ("asimd", (128, 32)),
        ("", (0, 0)),
    ],
)
def test_vector_unit_is_the_widest(flags: str, unit: tuple[int, int]):
    assert host.vector_unit(frozenset(flags.split())) == unit


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "bits"),
    [
        ("AuthenticAMD", 25, "avx2 avx512f", 256),  # Zen 4
        ("AuthenticAMD", 25, "avx2", 0),  # Zen 3
        ("AuthenticAMD", 26, "avx2 avx512f", 0),  # Zen 5
        ("GenuineIntel", 6, "avx2 avx512f", 0),
    ],
)
def test_zen_4_computes_with_half_a_vector_at_once(
    tmp_path: Path, vendor: str, family: int, flags: str, bits: int
):
    info = tmp_path / "cpuinfo"
    info.write_text(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: {flags}\n")
    assert host.datapath_bits(info) == bits
    assert host.datapath_bits(tmp_path / "none") == 0


AVX512 = "avx512f avx512bw avx512dq avx512vl avx512cd"


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (f"{AVX512} avx512_vnni avx2 fma bmi2 avx", "cascadelake"),
        (f"{AVX512} avx2 fma bmi2 avx", "skylake-avx512"),
        ("avx512f avx2 fma bmi2 avx", "haswell"),
        ("avx2 fma bmi2 avx", "haswell"),
        ("avx", "sandybridge"),
        ("sse2", "x86-64"),
    ],
)
def test_processor_name_has_no_instruction_beyond_the_flags(flags: str, name: str):
    assert pocl.processor_name(frozenset(flags.split())) == name


def fake_device(text: bytes) -> tuple[ctypes.Array, ctypes.Array]:
    name = ctypes.create_string_buffer(text)
    slots = (ctypes.c_uint64 * 512)()
    slots[3] = 0xDEAD0000DEAD
    slots[80] = ctypes.addressof(name)
    return slots, name


def test_the_processor_is_replaced():
    slots, _name = fake_device(b"generic")
    assert pocl.repair_processor(ctypes.addressof(slots), "generic", "haswell")
    assert ctypes.string_at(slots[80]) == b"haswell"
    assert slots[3] == 0xDEAD0000DEAD


def test_another_processor_is_left_alone():
    slots, name = fake_device(b"generic-but-longer")
    assert not pocl.repair_processor(ctypes.addressof(slots), "generic", "haswell")
    assert slots[80] == ctypes.addressof(name)


def test_the_users_affinity_is_kept():
    environment = {"POCL_AFFINITY": "0"}
    pocl.prepare_environment(environment)
    assert environment["POCL_AFFINITY"] == "0" and not pocl.pinned(environment)


@pytest.mark.parametrize(("files", "own", "cores"), LIMITS)
def test_control_groups_limit_the_cores(
    files: dict[str, str], own: str, cores: float, tmp_path: Path
):
    write_groups(tmp_path, files, own)
    assert host.quota_cores(tmp_path / "groups", tmp_path / "own") == cores


def test_a_driver_that_does_not_load_says_why(tmp_path: Path):
    library = tmp_path / "lib" / "libintelocl.so"
    library.parent.mkdir()
    library.write_text("not a library")
    found = [driver for driver in vendors.find_drivers(tmp_path) if driver.vendor == "intel"]
    assert [driver.library for driver in found] == [str(library)]
    assert "libintelocl.so" in found[0].problem


def test_extra_drivers_are_registered_beside_the_systems(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(vendors.REGISTRY_VARIABLE, raising=False)
    (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    drivers = (
        vendors.Driver(vendor="intel", library="/x/libintelocl.so"),
        vendors.Driver(vendor="nvidia", library="libnvidia-opencl.so.1"),
        vendors.Driver(vendor="broken", library="/x/b.so", problem="no"),
    )
    with vendors.extra_drivers(drivers, tmp_path):
        folder = Path(os.environ[vendors.REGISTRY_VARIABLE])
        entries = {path.read_text().strip() for path in folder.iterdir()}
    assert entries == {"/x/libintelocl.so", "libnvidia-opencl.so.1"}
    assert vendors.REGISTRY_VARIABLE not in os.environ
    assert not folder.exists()


def test_a_registry_of_the_users_is_left_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(vendors.REGISTRY_VARIABLE, "/mine")
    driver = vendors.Driver(vendor="intel", library="/x/libintelocl.so")
    with vendors.extra_drivers((driver,), tmp_path):
        assert os.environ[vendors.REGISTRY_VARIABLE] == "/mine"


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert host.available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host.available_cores() >= 1
