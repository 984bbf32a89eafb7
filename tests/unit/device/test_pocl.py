"""PoCL's environment and the repair of its processor name, on memory of our own."""

import ctypes
import os
import subprocess
import sys
from math import inf
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from retune.device.opencl import host, pocl


@pytest.mark.parametrize(
    ("allowed", "quota", "asked"),
    [({0, 1, 2, 3}, inf, None), ({2, 3}, inf, "2"), ({2, 3}, 0.5, "1")],
)
def test_pocl_starts_a_thread_for_each_core_that_may_be_used(
    allowed: set[int], quota: float, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(host, "quota_cores", lambda: quota)
    environ: dict[str, str] = {}
    pocl.prepare_environment(environ)
    assert environ.get("POCL_CPU_MAX_CU_COUNT") == environ.get("POCL_MAX_PTHREAD_COUNT") == asked
    assert pocl.pinned(environ) == (quota == inf)


def test_the_users_choice_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1 << 20)
    environ = {"POCL_MAX_PTHREAD_COUNT": "7"}
    pocl.prepare_environment(environ)
    assert environ["POCL_MAX_PTHREAD_COUNT"] == "7"


@pytest.mark.parametrize(("chosen", "spread"), [({}, True), ({"POCL_AFFINITY": "0"}, False)])
def test_threads_stay_on_a_core_each_unless_the_user_forbids_it(
    chosen: dict[str, str], spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "quota_cores", lambda: inf)
    cores, ready, done = host.core_numbers(), Barrier(len(host.core_numbers()) + 1), Event()
    found: list[set[int]] = []

    def work() -> None:
        ready.wait()
        done.wait()
        found.append(os.sched_getaffinity(0))

    with pocl.pinning(chosen):
        threads = [Thread(target=work) for _ in cores]
        for thread in threads:
            thread.start()
        ready.wait()
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(map(sorted, found)) == (
        [[c] for c in cores] if spread else [[*cores]] * len(cores)
    )
    assert os.sched_getaffinity(0) == set(cores)


_PINNED = """
import os
from retune.device.opencl.catalogue import find_bare
spec, _ = find_bare("pocl")
found = (os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task"))
print(spec.compute_units, sum(len(cores) == 1 for cores in found))
"""


@pytest.mark.skipif(not pocl.pinned({}), reason="a share of the cores' time")
def test_threads_stay_on_a_core_each_beside_another_platform(tmp_path: Path) -> None:
    """As where a GPU has a driver, too: the loader must not ask for devices before we do."""
    import pyopencl

    libraries = Path(pyopencl.__file__).parent / ".libs"
    (library,) = libraries.glob("libpocl*.so*")
    for name in ("one.icd", "two.icd"):
        (tmp_path / name).write_text(f"{library}\n", encoding="utf-8")
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("POCL", "OCL"))
    }
    run = subprocess.run(
        [sys.executable, "-c", _PINNED],
        env={**environ, "OCL_ICD_VENDORS": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    started, pinned = map(int, run.stdout.split())
    assert pinned == started


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
