"""Facts of the processor from the operating system: caches and vector registers.

OpenCL reports one cache size and guesses vector widths; schedules need both levels and the truth.
Every function takes the folder or file it reads, so tests need no particular machine.
"""

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
CPUINFO = Path("/proc/cpuinfo")
GROUPS = Path("/sys/fs/cgroup")

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Data cache sizes as one core sees them, in bytes; 0 where unknown."""

    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    line_bytes: int = 0


def read_caches(folder: Path = CACHE_FOLDER) -> Caches:
    """The data and unified caches listed in `folder`; all zero if the system lists none."""
    sizes: dict[int, int] = {}
    line = 0
    for index in sorted(folder.glob("index*")):
        if _text(index / "type") not in {"Data", "Unified"}:
            continue
        level = _text(index / "level")
        if level.isdigit():
            sizes[int(level)] = _size(_text(index / "size"))
            line = line or _size(_text(index / "coherency_line_size"))
    return Caches(
        l1_bytes=sizes.get(1, 0),
        l2_bytes=sizes.get(2, 0),
        l3_bytes=sizes.get(3, 0),
        line_bytes=line,
    )


def read_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Instruction-set flags of the first processor; empty if the system does not tell."""
    for line in _text(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def datapath_bits(cpuinfo: Path = CPUINFO) -> int:
    """Bits of a vector that the processor computes with at once, if these are fewer than all; or 0.

    Source: AMD, Software Optimization Guide for the Zen 4 Microarchitecture (57647), 2.11.
    """
    lines = (line.partition(":") for line in _text(cpuinfo).splitlines())
    facts = {key.strip(): value.split() for key, _, value in lines}
    zen4 = facts.get("vendor_id") == ["AuthenticAMD"] and facts.get("cpu family") == ["25"]
    return 256 if zen4 and "avx512f" in facts.get("flags", ()) else 0


def describe(cpuinfo: Path = CPUINFO, caches: Path = CACHE_FOLDER) -> str:
    """What the machine's processor is, and how many cores and which caches it has.

    The same in every container of the machine, and in each start of it.
    """
    names = {"model name", "Hardware", "cpu model", "uarch"}
    lines = (line.partition(":") for line in _text(cpuinfo).splitlines())
    name = next((value.strip() for key, _, value in lines if key.strip() in names), "")
    found = read_caches(caches)
    sizes = (found.l1_bytes, found.l2_bytes, found.l3_bytes)
    held = ", ".join(f"{size >> 10} KiB" for size in sizes if size)
    processor = name or f"unknown {platform.machine()} processor"
    return f"{processor}, {os.cpu_count() or 1} cores, caches {held or 'unknown'}"


def available_cores() -> int:
    """Cores that this process may use: fewer than the machine has, in a container, say."""
    return max(1, math.ceil(min(len(core_numbers()), quota_cores())))


def core_numbers() -> tuple[int, ...]:
    """The cores on which this process may run, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def quota_cores(folder: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' time Linux gives the process's control groups: `docker run --cpus 2`, say.

    Infinity where they are not limited. Source: cgroups(7), both versions.
    """
    lines = _text(own).splitlines()
    name = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    group = folder / name.strip("/")
    groups = (each for each in (group, *group.parents) if each.is_relative_to(folder))
    limits = [_text(each / "cpu.max").partition(" ") for each in groups]  # quota and period, in us
    former = (_text(folder / "cpu" / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
    return min(_cores(*former), *(_cores(quota, period) for quota, _, period in limits))


def affinity(*, pinned: bool) -> str:
    """Which part of the machine's cores this process may use, and whether its threads stay put."""
    cores = os.cpu_count() or 1
    return f"{available_cores()} of {cores} cores, {'pinned' if pinned else 'not pinned'}"


def vector_unit(flags: frozenset[str]) -> tuple[int, int]:
    """Width in bits and count of the vector registers that the flags promise; (0, 0) if none."""
    if "avx512f" in flags:
        return 512, 32
    if "avx" in flags:
        return 256, 16
    if "sse2" in flags:
        return 128, 16
    if "asimd" in flags or "neon" in flags:
        return 128, 32
    return 0, 0


def _cores(quota: str, period: str) -> float:
    """Infinity for what is not two numbers: no limit."""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _size(text: str) -> int:
    digits, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    return int(digits) * unit if digits.isdigit() else 0
