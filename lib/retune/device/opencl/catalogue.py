"""What OpenCL devices this machine has, and how each is described.

Read `list_devices` and `_spec`. Drivers are loaded at the first question, once a process; this is
the only importer of pyopencl.
"""

import functools
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Literal

from retune.core.errors import DeviceError, InputError
from retune.core.target import DeviceSpec
from retune.device.opencl import host, pocl, vendors
from retune.device.opencl.remembered import remembered

_ERRORS_OF_THE_LOADER = (-1, -1001)
"""CL_DEVICE_NOT_FOUND and CL_PLATFORM_NOT_FOUND_KHR: no device, rather than a broken one."""
_MAX_CPU_IMAGE = 4096
"""Texels of a row, and rows, that are used of a CPU's images: PoCL's own limit follows from the
memory that a process may have, and is another one in the next process."""


def list_devices() -> tuple[DeviceSpec, ...]:
    """Every usable OpenCL device, each once, PoCL first."""
    return tuple(_probed(spec) for spec in _catalogue())


def device_names() -> tuple[str, ...]:
    """The names of these devices. Their instructions are not probed, which takes seconds."""
    return tuple(spec.name for spec in _catalogue())


def driver_problems() -> tuple[str, ...]:
    """One sentence for each OpenCL driver that is installed but cannot be loaded."""
    return tuple(
        f"{driver.vendor}: {driver.library} cannot be loaded: {driver.problem}"
        for driver in vendors.find_drivers()
        if driver.problem
    )


_CLASSES = {
    **dict.fromkeys(("cuda", "gpu", "nvidia", "rocm", "amd", "metal", "vulkan", "xpu"), "gpu"),
    **dict.fromkeys(("cpu", "host", "llvm", "x86", "arm"), "cpu"),
}
"""What other programs call devices -> the class of OpenCL device that is meant."""


def device_spec(name: str) -> DeviceSpec:
    """The device of that name, not opened. Raises: InputError naming the devices that exist."""
    return find_device(name)[0]


def find_device(name: str) -> tuple[DeviceSpec, Any]:
    """Its spec and the driver's handle. Raises: InputError naming the devices that exist."""
    spec, handle = find_bare(name)
    return _probed(spec), handle


@functools.cache
def _probed(spec: DeviceSpec) -> DeviceSpec:
    """The spec with the instructions that were found to work there."""

    def offered() -> tuple[str, ...]:
        from retune.device.opencl import probing  # which generates kernels, with all that takes

        return probing.offered(spec)

    names = remembered("offered", offered, spec.fingerprint, spec.host)
    return replace(spec, instructions=names)


def find_bare(name: str) -> tuple[DeviceSpec, Any]:
    """As `find_device`, but nothing is said, or asked, of its instructions."""
    catalogue = _catalogue()
    for spec, handle in catalogue.items():
        if spec.name == name:
            return spec, handle
    known = ", ".join(spec.name for spec in catalogue) or "none"
    problems = "".join(f"; {problem}" for problem in driver_problems())
    driver = "" if catalogue else ", or install a driver (pip install 'pyopencl[pocl]')"
    raise InputError(
        f"device {name!r} is not known; found here: {known}{problems}. "
        f"{_hint(name, tuple(catalogue))}Choose one of these, vta-sim or a profile (see `retune "
        f"devices`){driver}."
    )


def _hint(name: str, specs: Sequence[DeviceSpec]) -> str:
    """Which device a name that is not one may mean, as a sentence and a space; '' if unclear."""
    kind = _CLASSES.get(name.lower().partition(":")[0])
    meant = [spec.name for spec in specs if spec.device_class == kind]
    if kind == "gpu" and not meant:
        return (
            "No OpenCL driver here has a GPU: install the vendor's OpenCL library, and look "
            "whether `clinfo -l` lists it. "
        )
    meant = meant or get_close_matches(name, [spec.name for spec in specs], n=1)
    return f"Did you mean {' or '.join(meant)}? " if meant else ""


@functools.cache  # a device's processor is repaired once
def find_in_caller(spec: DeviceSpec) -> tuple[DeviceSpec, Any] | None:
    """The device of the same processor that runs kernels in the thread that enqueues them.

    Only PoCL has one, and only if it compiles for the same processor: PoCL 3.0 gives kernels that
    crash where its own functions do not fit.
    """
    handle = _catalogue().get(replace(spec, instructions=()))
    if handle is None:
        return None
    for other in handle.platform.get_devices():
        if pocl.runs_in_caller(other.name):
            found = _spec(f"{spec.name}-caller", handle.platform, other)
            found = replace(found, instructions=spec.instructions)
            same = _processor(found.opencl) == _processor(spec.opencl)
            return (found, other) if same else None
    return None


def _processor(version: str) -> str:
    return version.partition("-linux-gnu-")[2]


@functools.cache
def opencl() -> ModuleType:
    """pyopencl, imported with the environment that its drivers need."""
    pocl.prepare_environment(os.environ)
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    with vendors.extra_drivers(vendors.find_drivers()):
        import pyopencl

        try:
            pyopencl.get_platforms()  # the loader reads its registry at the first call, once
        except pyopencl.Error as error:
            if error.code not in _ERRORS_OF_THE_LOADER:
                raise DeviceError(f"OpenCL cannot be started: {error}") from error
    return pyopencl


@functools.cache
def _catalogue() -> dict[DeviceSpec, Any]:
    """Spec -> OpenCL device. A device that two loader entries show appears once.

    PoCL's device without threads is left out beside the one with threads: it is the same processor.
    """
    found: dict[DeviceSpec, Any] = {}
    seen: set[tuple[str, ...]] = set()
    counts: dict[str, int] = {}
    for platform in _platforms():
        base = _family(platform.name)
        addresses: set[int] = set()
        local: dict[tuple[str, ...], int] = {}
        with pocl.pinning(os.environ) if base == "pocl" else nullcontext():
            handles = platform.get_devices()
        threaded = [handle for handle in handles if not pocl.runs_in_caller(handle.name)]
        for handle in threaded or handles:
            if handle.int_ptr in addresses:
                continue
            addresses.add(handle.int_ptr)
            identity = (platform.name, platform.version, handle.name, handle.driver_version)
            local[identity] = local.get(identity, 0) + 1
            if (key := (*identity, str(local[identity]))) in seen:
                continue
            seen.add(key)
            index = counts.get(base, 0)
            counts[base] = index + 1
            name = base if base in {"pocl", "intel"} and not index else f"{base}-{index}"
            found[_spec(name, platform, handle)] = handle
    return dict(sorted(found.items(), key=lambda item: item[0].name != "pocl"))


def _platforms() -> list[Any]:
    cl = opencl()
    try:
        return list(cl.get_platforms())
    except cl.Error:
        return []


def _family(platform: str) -> str:
    if platform == pocl.PLATFORM:
        return "pocl"
    if platform.startswith("Intel") and "OpenCL" in platform and "Graphics" not in platform:
        return "intel"
    return re.sub(r"[^a-z0-9]+", "-", platform.lower()).strip("-")


def _spec(name: str, platform: Any, handle: Any) -> DeviceSpec:
    cl = opencl()
    is_cpu = bool(handle.type & cl.device_type.CPU)
    kind: Literal["cpu", "gpu"] = "cpu" if is_cpu else "gpu"
    flags = host.read_flags() if is_cpu else frozenset[str]()
    caches = host.read_caches() if is_cpu else host.Caches(l2_bytes=handle.global_mem_cache_size)
    bits, registers = host.vector_unit(flags)
    width, height = _largest_image(handle, is_cpu=is_cpu)
    return DeviceSpec(
        name=name,
        model=handle.name.strip(),
        device_class=kind,
        platform=platform.name.strip(),
        driver=handle.driver_version.strip(),
        opencl=_version(name, handle, flags),
        compute_units=handle.max_compute_units,
        vector_bits=bits if is_cpu else 32 * handle.native_vector_width_float,
        vector_registers=registers,
        datapath_bits=host.datapath_bits() if is_cpu else 0,
        l1_bytes=caches.l1_bytes,
        l2_bytes=caches.l2_bytes,
        l3_bytes=caches.l3_bytes,
        cache_line_bytes=caches.line_bytes or handle.global_mem_cacheline_size,
        local_memory_bytes=_local_memory(handle, kind),
        global_memory_bytes=handle.global_mem_size,
        max_work_group=handle.max_work_group_size,
        image_width=width,
        image_height=height,
        extensions=tuple(sorted(handle.extensions.split())),
        host=host.describe(),
        affinity=host.affinity(pinned=pocl.pinned(os.environ)) if is_cpu else "",
    )


def _local_memory(handle: Any, kind: str) -> int:
    """Bytes of local memory; 0 where a GPU has it in global memory: copies gain nothing there."""
    own = handle.local_mem_type == opencl().device_local_mem_type.LOCAL
    return int(handle.local_mem_size) if own or kind == "cpu" else 0


def _largest_image(handle: Any, *, is_cpu: bool) -> tuple[int, int]:
    """Texels of a row, and rows, of an image of two dimensions; 0 where it has none."""
    if not handle.image_support:
        return 0, 0
    width, height = int(handle.image2d_max_width), int(handle.image2d_max_height)
    return (min(width, _MAX_CPU_IMAGE), min(height, _MAX_CPU_IMAGE)) if is_cpu else (width, height)


def _version(name: str, handle: Any, flags: frozenset[str]) -> str:
    """The OpenCL version text; it names the processor that code is generated for."""
    version: str = handle.version.strip()
    given = pocl.doubtful_processor(version) if name.startswith("pocl") else None
    wanted = pocl.processor_name(flags)
    if given is None or given == wanted:
        return version
    if pocl.repair_processor(handle.int_ptr, given, wanted):
        return version.removesuffix(given) + wanted
    return version
