"""Finds OpenCL drivers that no system-wide registry names, and says why one cannot be loaded.

PoCL comes with pyopencl and is found by its loader. Intel's CPU runtime (a wheel) and NVIDIA's
driver (in a container) are libraries without a registry entry: `extra_drivers` makes one for the
time of loading. Must not import pyopencl: the registry is read when it is imported.
"""

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

REGISTRY_VARIABLE = "OCL_ICD_VENDORS"
SYSTEM_REGISTRY = Path("/etc/OpenCL/vendors")

_MISSING = re.compile(r"^(\S+\.so\S*): cannot open shared object file")
_PRELOADS = 16
"""Libraries that a driver may need from its own folder, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One driver library. `problem` says why it cannot be used; empty if it can."""

    vendor: str
    library: str
    problem: str = ""


def find_drivers(prefix: Path = Path(sys.prefix)) -> tuple[Driver, ...]:
    """Drivers outside the system's registry: those of installed wheels, and NVIDIA's."""
    wheels = [("intel", prefix / "lib" / "libintelocl.so")]
    found = [
        Driver(vendor=vendor, library=str(path), problem=_problem(path))
        for vendor, path in wheels
        if path.exists()
    ]
    nvidia = "libnvidia-opencl.so.1"
    if not _problem(Path(nvidia)):
        found.append(Driver(vendor="nvidia", library=nvidia))
    return tuple(found)


@contextlib.contextmanager
def extra_drivers(
    drivers: tuple[Driver, ...], system: Path = SYSTEM_REGISTRY
) -> Generator[None, None, None]:
    """While the context lasts, OpenCL's loader sees `drivers` besides the system's registry.

    A registry that the user chose is left alone.
    """
    usable = [driver for driver in drivers if not driver.problem]
    if REGISTRY_VARIABLE in os.environ or not usable:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="retune-icd-") as folder:
        for name, text in _entries(usable, system).items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        os.environ[REGISTRY_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(REGISTRY_VARIABLE, None)


def _entries(drivers: list[Driver], system: Path) -> Mapping[str, str]:
    """Registry file name -> library, without naming a library twice."""
    entries = {path.name: path.read_text(encoding="utf-8").strip() for path in system.glob("*.icd")}
    named = {Path(library).name for library in entries.values()}
    for driver in drivers:
        if Path(driver.library).name not in named:
            entries[f"retune-{driver.vendor}.icd"] = driver.library
    return {name: f"{library}\n" for name, library in entries.items()}


def _problem(path: Path) -> str:
    """Why `path` does not load; empty if it does. Its neighbours are loaded where it needs them."""
    reason = ""
    for _ in range(_PRELOADS):
        reason = _load(path)
        missing = _MISSING.match(reason)
        if not missing or not (neighbour := path.parent / missing[1]).is_file():
            return reason
        if problem := _load(neighbour):
            return problem
    return reason


def _load(path: Path) -> str:
    try:
        # Never global: a driver's own OpenCL functions would take the place of the loader's.
        ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        return str(error)
    return ""
