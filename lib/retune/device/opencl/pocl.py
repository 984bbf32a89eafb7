"""PoCL's needs: a thread for each core that may be used, pinned to it, a processor name that its
own functions fit, and a device that runs kernels in the calling thread beside the one that has
threads of its own.

`prepare_environment` first, before the OpenCL library is loaded; `pinning` around the first
question for devices, which starts the threads; then `repair_processor` for each device. None
imports pyopencl: they work on the environment, on threads and on a device's address.
"""

import ctypes
import os
import re
from bisect import bisect_right
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from retune.device.opencl import host

PLATFORM = "Portable Computing Language"

UNPINNED: Mapping[str, str] = {"POCL_AFFINITY": "0"}
"""Environment of a process that only compiles. PoCL compiles on its device threads: pinned, those
of two processes may meet on one core while the other core is idle."""

_THREADS = ("POCL_CPU_MAX_CU_COUNT", "POCL_MAX_PTHREAD_COUNT")
"""How many threads PoCL starts, in its versions from 4.0 on and in those of before."""

_DEVICES = "pthread basic"
"""The device with a thread for each core, and the one without threads. PoCL shows the first alone
if it is not asked; versions from 4.0 on call them `cpu` and `cpu-minimal`, and know these names."""

_THREADLESS = ("basic", "cpu-minimal")
"""What the names of devices without threads begin with."""

_SCANNED_SLOTS = 400
"""8-byte slots of PoCL's device struct that are searched; the name sits at slot 80 in 3.0."""

_MAPS = Path("/proc/self/maps")
_TASKS = Path("/proc/self/task")

_kept: list[ctypes.Array[ctypes.c_char]] = []
"""Names handed to PoCL: it keeps the pointer for as long as the process lives."""


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Asks for a thread for each core that may be used, for both devices, and for platforms in the
    order of their registry, unless the user chose otherwise.

    PoCL counts the machine's cores: in a smaller set, two threads that wait for each other would
    share a core. ocl-icd, the loader of pyopencl and of most systems, sorts several platforms by
    their devices, and asking for these starts PoCL's threads before `pinning` begins.
    """
    available = host.available_cores()
    if available < (os.cpu_count() or 1):
        for name in _THREADS:
            environ.setdefault(name, str(available))
    environ.setdefault("POCL_DEVICES", _DEVICES)
    environ.setdefault("OCL_ICD_PLATFORM_SORT", "none")


def runs_in_caller(device: str) -> bool:
    """Whether PoCL's device of that name runs a kernel in the thread that enqueues it."""
    return device.startswith(_THREADLESS)


@contextmanager
def pinning(environ: Mapping[str, str]) -> Generator[None]:
    """Threads that begin here stay on a core each, of those that may be used, where `pinned`.

    Unpinned, both threads of a two-core machine may share one core, and times flip by a factor 2.
    PoCL's own pinning is to core 0, 1, ... and aborts where it may not.
    """
    before = _threads()
    yield
    if pinned(environ):
        cores = host.core_numbers()
        for number, thread in enumerate(sorted(_threads() - before)):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, {cores[number % len(cores)]})


def pinned(environ: Mapping[str, str]) -> bool:
    """Whether PoCL's threads are pinned in this environment.

    Not where the user forbids it, nor where only a share of the cores' time may be used: others
    have the rest of it, on the same cores.
    """
    chosen = environ.get("POCL_AFFINITY")
    can = hasattr(os, "sched_setaffinity") and host.available_cores() == len(host.core_numbers())
    return can if chosen is None else chosen == "1"


def _threads() -> set[int]:
    return {int(each.name) for each in _TASKS.iterdir()} if _TASKS.is_dir() else set()


def doubtful_processor(version: str) -> str | None:
    """The processor that PoCL's OpenCL version text names, where its own functions may not fit it.

    None where they do: later versions (whose devices are called `cpu`) name the processor of the
    library that they chose, and inline nothing once they are given another name: 226 instead of
    1590 GFLOPS on 16 cores. `generic` is not a valid name, and other processors than x86-64 are not
    known here.
    """
    found = re.search(r"(\w+)-x86_64-\S*-linux-gnu-(\S+)$", version)
    own = found and (found[1] in _DEVICES.split() or found[2] == "generic")
    return found[2] if found and own else None


def processor_name(flags: frozenset[str]) -> str:
    """The newest processor with no instruction beyond `flags` that PoCL's own functions fit.

    They come compiled for a few processors (sandybridge, haswell, skylake-avx512, ...), and LLVM
    inlines a function only where the caller's processor has every feature of the function's. PoCL
    3.0 calls some processors by names that lack one: `generic`, if newer than its compiler, and
    `rocketlake` or `icelake-client` (which have no clwb) on some servers; there each `fma` is a
    call (by `ceilings.Ceilings`: 27 GFLOPS on two cores, and 246 with the name given here).
    """
    if flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}:
        return "cascadelake" if "avx512_vnni" in flags else "skylake-avx512"
    if flags >= {"avx2", "fma", "bmi2"}:
        return "haswell"
    return "sandybridge" if "avx" in flags else "x86-64"


def repair_processor(device_address: int, given: str, name: str) -> bool:
    """Gives PoCL's device struct the processor `name`; True if its own was `given`.

    PoCL 3.0 reads the name from the struct whenever it builds. Nothing is read or written outside
    memory that the process maps as readable.
    """
    unwanted = given.encode() + b"\0"
    readable = _readable_ranges(_MAPS)
    slots = (ctypes.c_uint64 * _SCANNED_SLOTS).from_address(device_address)
    found = [
        index
        for index in range(_SCANNED_SLOTS)
        if _is_readable(device_address + 8 * index, 8, readable)
        and _is_readable(slots[index], len(unwanted), readable)
        and ctypes.string_at(slots[index], len(unwanted)) == unwanted
    ]
    if not found:
        return False
    text = ctypes.create_string_buffer(name.encode())
    _kept.append(text)
    for index in found:
        slots[index] = ctypes.addressof(text)
    return True


def _readable_ranges(maps: Path) -> list[tuple[int, int]]:
    """From and to which address memory is readable, the lowest first; neighbours are joined."""
    ranges: list[tuple[int, int]] = []
    for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
        span, permissions = line.split()[:2]
        if permissions.startswith("r"):
            low, _, high = span.partition("-")
            ranges.append((int(low, 16), int(high, 16)))
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def _is_readable(address: int, size: int, ranges: list[tuple[int, int]]) -> bool:
    """Whether the bytes lie in one of the sorted ranges."""
    at = bisect_right(ranges, address, key=lambda item: item[0]) - 1
    return at >= 0 and address <= ranges[at][1] - size
