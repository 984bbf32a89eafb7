"""DeviceSpec: what a schedule and a measurement need to know of a device, as plain data.

No OpenCL object appears here, so spaces are built and tested without a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from retune.core.dims import example
from retune.core.dtypes import DTYPES, FLOAT64, DType

DeviceClass = str
"""Which rules a device goes by: `cpu`, `gpu`, or what is registered in `retune.targets.devices`."""

_EXTENSIONS = {FLOAT64: "cl_khr_fp64"}
"""Compute type -> the OpenCL extension without which no kernel computes with it.

Types that are only stored need none: `vload_half` and `vstore_half` are of every device.
Source: OpenCL 3.0 C, 6.15.8, Vector Data Load and Store Functions."""


def converting(dtype: DType) -> str:
    """The name, among `DeviceSpec.instructions`, of instructions that convert a small float."""
    return f"convert.{dtype}"


WARP = 32
"""Items that execute together on devices with instructions of warps (NVIDIA)."""
COPY_AHEAD = "copy.ahead"
"""The name, among `DeviceSpec.instructions`, of copies into local memory that are awaited later."""

DECLARED_LOCAL: Mapping[str, int] = {f"local.{kib}k": kib << 10 for kib in (224, 160, 96)}
"""Names, among `DeviceSpec.instructions`, of sizes in bytes that the arrays of a kernel in local
memory may have together, whatever the driver states (NVIDIA: 48 KB). The largest comes first.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """Limits of one device. Sizes are bytes unless the name says otherwise."""

    name: str
    """Short name used on the command line, such as `pocl`."""
    model: str
    """What the driver calls the device."""
    device_class: DeviceClass
    platform: str
    driver: str
    opencl: str
    compute_units: int
    vector_bits: int
    """Widest SIMD register of a core, in bits; 0 if unknown."""
    vector_registers: int
    """Architectural vector registers of a core."""
    datapath_bits: int = 0
    """Bits of a vector with which a core computes at once; 0: with all of them. A vector of more
    takes several turns: one of 512 bits two of 256 on Zen 4."""
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line_bytes: int
    local_memory_bytes: int
    """Of one work-group; for a GPU 0 where it is only a part of global memory (Mali)."""
    global_memory_bytes: int = field(compare=False)
    """As the driver says at the moment: PoCL says what the machine has left."""
    max_work_group: int
    """Work-items of one work-group at most."""
    image_width: int = 0
    """Texels of a row of its largest image of two dimensions; 0: it has no images."""
    image_height: int = 0
    """Rows of that."""
    image_reads: int = 0
    """1 where constants are read faster through images than as arrays. No driver says it."""
    extensions: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    """What was built, run and found right there, see `opencl.probing`: implementations of
    intrinsics, launches from one address, persistent kernels, and `DECLARED_LOCAL`."""
    host: str = ""
    """Processor, cores and caches of the machine that it is in."""
    accelerator: str = ""
    """What stands beside it and runs packed parts of networks: a VTA variant and its board."""
    affinity: str = ""
    """Cores of the machine on which its kernels may run; empty if it has cores of its own."""
    computed_by: str = ""
    """Name and fingerprint, with a bar between them, of the device that computes instead: one
    with other limits, see `core.parameters`, or one that plays it, see `device.profiles`."""

    @property
    def lasting(self) -> "DeviceSpec":
        """Less what the driver says at the moment: what is written of it is the same tomorrow."""
        return replace(self, global_memory_bytes=0)

    @property
    def fingerprint(self) -> str:
        """Model, driver and OpenCL version: a kernel made for one fits another of the same."""
        return f"{self.model}|{self.driver}|{self.opencl}"

    @property
    def declared_local_bytes(self) -> int:
        """Local memory of one work-group in arrays that its kernel declares."""
        found = (DECLARED_LOCAL[name] for name in self.instructions if name in DECLARED_LOCAL)
        return max(self.local_memory_bytes, *found, 0)

    @property
    def outruns_host(self) -> bool:
        """Whether it is done with a short kernel before the host has enqueued the next one.

        A clock on the host then shows how fast the host is, and events cost more than the kernel:
        `runtime.Device` times its kernels behind one that holds the queue.
        """
        return self.device_class == "gpu"

    def lacking(self, dtype: DType) -> str:
        """The OpenCL extension without which it does not compute with that type; '' if it does."""
        extension = _EXTENSIONS.get(dtype.compute, "")
        return "" if extension in self.extensions else extension

    @property
    def stored(self) -> frozenset[DType]:
        """The small floats that stay between kernels, which compute in float32, where a network
        has them: those that the device converts about as fast as it loads.

        bfloat16 is the upper half of a float32, everywhere. GPUs have instructions for float16, by
        which `vload_half` goes without an extension. On processors float16 costs more than the
        memory saves, with instructions that convert it too (resnet18 2.0 x the time in float32 on
        PoCL 3.0 with F16C, Zen 4; mobilenet 1.3 x on Intel's runtime, Zen 5).
        """
        return frozenset(
            dtype for dtype in DTYPES if dtype.is_small_float and self._converts(dtype)
        )

    def _converts(self, dtype: DType) -> bool:
        halves = dtype.exponent == dtype.compute.exponent
        return halves or self.device_class != "cpu"

    @property
    def lanes_f32(self) -> int:
        """float32 elements of one vector register, at least one."""
        return max(1, self.vector_bits // 32)

    def vector_lanes(self, extent: int | None = None) -> int:
        """float32 elements of the widest vector that the extent fills; None: of any.

        One that depends on sizes has the value for those at hand: where others do not fill the
        vector, kernels have a copy for them.
        """
        lanes = min(16, self.lanes_f32)
        extent = extent if extent is None else example(extent)
        while extent is not None and lanes > max(1, extent):
            lanes //= 2
        return lanes


def model_of(fingerprint: str) -> str:
    """The device's name for people: the model in its fingerprint."""
    return fingerprint.partition("|")[0].strip() or fingerprint


MOST_GROUPS = 65_535
"""Work-groups on the second and on the third axis: NVIDIA's GPUs start no more.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""
MOST_DEEP_ITEMS = 64
"""Work-items of a group along the third axis: NVIDIA's GPUs start no more, of the 1,024 of a group.

Source: the same table; drivers say it as the last of CL_DEVICE_MAX_WORK_ITEM_SIZES.
"""

GENERIC_CPU = DeviceSpec(
    name="generic-cpu",
    model="two cores with 512-bit vectors",
    device_class="cpu",
    platform="none",
    driver="none",
    opencl="OpenCL 3.0",
    compute_units=2,
    vector_bits=512,
    vector_registers=32,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=16 << 20,
    cache_line_bytes=64,
    local_memory_bytes=1 << 20,
    global_memory_bytes=8 << 30,
    max_work_group=4096,
)
"""A stand-in for tests and for printing schedules where no device is at hand."""

GENERIC_GPU = DeviceSpec(
    name="generic-gpu",
    model="132 compute units with 48 KB of local memory each",
    device_class="gpu",
    platform="none",
    driver="none",
    opencl="OpenCL 3.0",
    compute_units=132,
    vector_bits=32,
    vector_registers=0,
    l1_bytes=0,
    l2_bytes=32 << 20,
    l3_bytes=0,
    cache_line_bytes=128,
    local_memory_bytes=48 << 10,
    global_memory_bytes=64 << 30,
    max_work_group=1024,
)
"""The same for GPUs."""
