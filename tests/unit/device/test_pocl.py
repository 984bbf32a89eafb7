"""PoCL's environment and the repair of its processor name, on memory of our own."""

import ctypes
import os

import pytest

from retune.device.opencl import pocl


def test_threads_are_pinned_where_every_core_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    environ: dict[str, str] = {}
    pocl.prepare_environment(environ)
    assert environ["POCL_AFFINITY"] == "1"


def test_threads_are_not_pinned_in_a_smaller_set_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    environ: dict[str, str] = {}
    pocl.prepare_environment(environ)
    assert "POCL_AFFINITY" not in environ


def test_the_users_choice_of_pinning_stays() -> None:
    environ = {"POCL_AFFINITY": "0"}
    pocl.prepare_environment(environ)
    assert environ["POCL_AFFINITY"] == "0"


@pytest.mark.parametrize(
    ("given", "devices"), [({}, "pthread basic"), ({"POCL_DEVICES": "cpu"}, "cpu")]
)
def test_both_devices_are_asked_for_unless_the_user_chose(
    given: dict[str, str], devices: str
) -> None:
    environ = dict(given)
    pocl.prepare_environment(environ)
    assert environ["POCL_DEVICES"] == devices


@pytest.mark.parametrize(
    ("name", "expected"),
    [("basic-AMD EPYC", True), ("cpu-minimal-x", True), ("pthread-x", False), ("cpu-x", False)],
)
def test_devices_without_threads_are_told_by_their_names(name: str, expected: bool) -> None:
    assert pocl.runs_in_caller(name) == expected


@pytest.mark.parametrize("given", ["generic", "rocketlake"])
def test_a_processor_that_the_functions_do_not_fit_gets_a_name_that_they_fit(given: str) -> None:
    name = ctypes.create_string_buffer(given.encode())
    struct = (ctypes.c_uint64 * 400)()
    struct[7] = 12345
    struct[80] = ctypes.addressof(name)
    assert pocl.repair_processor(ctypes.addressof(struct), given, "haswell")
    assert ctypes.string_at(struct[80]) == b"haswell"
    assert struct[7] == 12345


def test_a_struct_without_the_processor_is_left_alone() -> None:
    struct = (ctypes.c_uint64 * 400)(*range(400))
    assert not pocl.repair_processor(ctypes.addressof(struct), "generic", "haswell")
    assert list(struct) == list(range(400))


@pytest.mark.parametrize(
    ("version", "processor"),
    [
        ("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-rocketlake", "rocketlake"),
        ("OpenCL 3.0 PoCL HSTR: basic-x86_64-unknown-linux-gnu-znver3", "znver3"),
        ("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-skylake-avx512", "skylake-avx512"),
        ("OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-generic", "generic"),
        ("OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-skylake-avx512", None),
        ("OpenCL 3.0 PoCL HSTR: pthread-aarch64-unknown-linux-gnu-generic", None),
        ("OpenCL 3.0", None),
    ],
)
def test_the_processor_that_may_not_fit_is_read_from_the_version_text(
    version: str, processor: str | None
) -> None:
    assert pocl.doubtful_processor(version) == processor


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (
            "avx avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl avx512cd avx512_vnni",
            "cascadelake",
        ),
        ("avx avx2 fma bmi2 avx512f avx512bw avx512dq avx512vl avx512cd", "skylake-avx512"),
        ("avx avx2 fma bmi2", "haswell"),
        ("avx", "sandybridge"),
        ("sse2", "x86-64"),
    ],
)
def test_the_name_promises_no_instruction_that_is_missing(flags: str, name: str) -> None:
    assert pocl.processor_name(frozenset(flags.split())) == name
