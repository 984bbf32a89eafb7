"""An open OpenCL device with its programs, buffers and launches.

Read `Device` first; which devices there are says `catalogue`. Nothing here knows tasks, records or
networks; a caller sees DeviceSpec, numpy arrays and opaque handles.
"""

import contextlib
import ctypes
import functools
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retune.codegen.options import LEAST_BASED
from retune.codegen.source import KernelLaunch
from retune.core.dims import SizeValues, at, is_fixed
from retune.core.dtypes import DType, TensorType, numpy_dtype
from retune.core.errors import DeviceError
from retune.core.target import DeviceSpec
from retune.device.measure.inputs import random_array
from retune.device.opencl import declarations, holding, host, pages
from retune.device.opencl.binaries import Binaries, key_of
from retune.device.opencl.catalogue import find_device, find_in_caller, opencl
from retune.device.opencl.images import image_handle
from retune.device.opencl.permissions import require_registers
from retune.device.opencl.pocl import PLATFORM

PART_ALIGN_BYTES = 512
"""Devices take parts of a buffer from multiples of this on (CL_DEVICE_MEM_BASE_ADDR_ALIGN: NVIDIA
512, PoCL 128); cache lines and vectors stay whole too."""
_SHARED_ALIGN_BYTES = 128
"""The largest vector, which is also the most that OpenCL lets one ask for."""
LENT_ALIGN_BYTES = 16
"""The largest element, and what numpy's arrays have. Kernels for CPUs ask no more of vectors that
they read; those that they write past the caches have the alignment of `allocate_shared`."""


MOST_FILLED = 1 << 30
"""Bytes that are filled at once: NVIDIA's driver does not come back from 2**31 of them.
Source: github.com/inducer/pyopencl, issue 395; seen on an H200."""


class BuildFailed(DeviceError):
    """The device's compiler refused a program; the message ends with its log."""

    passes = False  # it refuses the same program again


class LaunchFailed(DeviceError):
    """The device refused or broke off a launch, a transfer or an allocation."""


def aligned(size_bytes: int, align_bytes: int = PART_ALIGN_BYTES) -> int:
    """The size, rounded up so that a part may begin where it ends."""
    return -(-size_bytes // align_bytes) * align_bytes


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """Device memory; freed when the last reference goes."""

    handle: Any
    bytes: int
    host: np.ndarray | None = None
    """The same memory as bytes of the host's, if both share it."""
    addresses: "DeviceAddresses | None" = None
    """Where it lies on the device, if kernels are given pointers."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAddresses:
    """A range of device addresses, which only the device may read and write."""

    range: np.ndarray
    """Its bytes: an array by which the range is cut, and never looked into."""
    owner: Any
    """The driver's allocation, freed with the last reference to it."""


@dataclass(frozen=True, slots=True, eq=False)
class BuiltProgram:
    """Compiled kernels."""

    handles: tuple[Any, ...]
    """The driver's programs, one for each text."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedKernel:
    """A kernel with its arguments set, ready to be enqueued any number of times.

    Before that its global size needs values, if it depends on sizes: see `at`.
    """

    name: str
    kernel: Any
    buffers: tuple[DeviceMemory, ...]
    """Kept alive: an OpenCL kernel does not hold on to its arguments."""
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]

    def __str__(self) -> str:
        sizes = f"{self.global_size} work-items in groups of {self.local_size}"
        return f"kernel {self.name!r} over {sizes}"

    def one_group(self) -> "PreparedKernel":
        """The same kernel and arguments over a single work-group."""
        return replace(self, global_size=self.local_size)

    def at(self, values: SizeValues) -> "PreparedKernel":
        """The same for these sizes, of which its global size may be made."""
        if all(map(is_fixed, self.global_size)):
            return self
        return replace(self, global_size=tuple(at(size, values) for size in self.global_size))


class Device:
    """One open OpenCL device with an in-order queue. Not for use by two threads at once."""

    def __init__(self, handle: Any, spec: DeviceSpec) -> None:
        self.spec = spec
        self._cl = opencl()
        require_registers(spec)
        with _refusals("open"):
            self._context = _context(handle)
            self._queue = self._cl.CommandQueue(self._context)
        self._profiled: Any = None
        self._binaries: Binaries | None = None
        self._fresh: dict[str, Any] = {}
        self._header = declarations.find_header() if spec.driver == declarations.DRIVER else None

    @functools.cached_property
    def in_caller(self) -> "Device | None":
        """The same processor, where a launch runs in the thread that enqueues it.

        It is done when the enqueueing returns; no thread is woken for it, and none helps. None
        where the driver has no such device.
        """
        found = find_in_caller(self.spec)
        return Device(found[1], found[0]) if found else None

    @functools.cached_property
    def has_atomics(self) -> bool:
        """Whether kernels may use acquire-release atomics of device scope (OpenCL 3.0)."""
        device = self._context.devices[0]
        try:
            offered = device.atomic_memory_capabilities
        except (AttributeError, self._cl.Error):
            return False
        kinds = self._cl.device_atomic_capabilities
        needed = kinds.ORDER_ACQ_REL | kinds.SCOPE_DEVICE
        return offered & needed == needed

    def build(self, *texts: str, options: Sequence[str] = ()) -> BuiltProgram:
        """The kernels of all texts, each text compiled on its own.

        Drivers keep compiled programs on disk under the hash of their text, so a kernel that many
        candidates share is compiled once if it is a text of its own. Some drivers compile a kernel
        only at its first launch. Raises: BuildFailed with the compiler's log.
        """
        return BuiltProgram(tuple(self._program(text, options) for text in texts))

    @contextlib.contextmanager
    def compiled(self, binaries: Binaries) -> Generator[None]:
        """Programs that are built in this context come from `binaries`, where it has them.

        It keeps the others once the context ends well, with all kernels that were launched.
        """
        self._binaries, self._fresh = binaries, {}
        try:
            yield
            for key in filter(binaries.wants, self._fresh):
                program = self._fresh[key]
                with contextlib.suppress(self._cl.Error):  # a driver may have no binaries
                    (binary,) = program.get_info(self._cl.program_info.BINARIES)
                    binaries.keep(key, bytes(binary))
        finally:
            self._binaries, self._fresh = None, {}

    def _program(self, text: str, options: Sequence[str]) -> Any:
        """The program, compiled before or now."""
        if self._binaries is None:
            return self._compile(text, options)
        key = key_of(text, options, *self._identity)
        program, origin = self._from_binary(self._binaries, key), "source"
        if program is not None:
            program, origin = program
        else:
            program = self._compile(text, options)
        self._binaries.use(key, origin)
        self._fresh[key] = program
        return program

    def _from_binary(self, binaries: Binaries, key: str) -> tuple[Any, str] | None:
        """A program from one of its compiled forms, and from where it is; None if none will do."""
        for origin, binary in binaries.candidates(key):
            try:
                program = self._cl.Program(self._context, self._context.devices, [binary])
                return program.build(cache_dir=False), origin
            except self._cl.Error as error:
                binaries.refuse(origin, str(error).splitlines()[0])
        return None

    @functools.cached_property
    def _identity(self) -> tuple[str, ...]:
        """What a compiled program depends on besides its text."""
        (device,) = self._context.devices
        of_platform = device.platform.name, device.platform.version
        processor = host.describe() if self.spec.device_class == "cpu" else ""
        return *of_platform, device.name, device.driver_version, device.version, processor

    def _compile(self, text: str, options: Sequence[str]) -> Any:
        if self._header is not None:
            short = declarations.abridged(text, self._header)
            with contextlib.suppress(BuildFailed):  # the whole header decides what is wrong
                return self._compile_whole(short, (*options, declarations.SKIP_HEADER))
        return self._compile_whole(text, options)

    def _compile_whole(self, text: str, options: Sequence[str]) -> Any:
        program = self._cl.Program(self._context, text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self._cl.CompilerWarning)
                return program.build(options=list(options), cache_dir=False)
        except self._cl.Error as error:
            raise BuildFailed(
                f"{self.spec.name}: the program does not build: {_build_log(str(error))}"
            ) from error

    def upload(self, array: np.ndarray, image: int = 0) -> DeviceMemory:
        """A buffer that holds a copy of `array`, or an image, of so many texels in a row."""
        flags = self._cl.mem_flags
        if image:
            with _refusals(f"image of {array.nbytes} bytes in rows of {image} texels"):
                return DeviceMemory(image_handle(self._context, array, image), array.nbytes)
        data = np.ascontiguousarray(array)
        if not data.nbytes:
            return self.allocate(1)
        if self._has_pointers or self._is_paged(data.nbytes):
            buffer = self.allocate(data.nbytes)
            self.write(buffer, data)
            return buffer
        with _refusals(f"upload of {data.nbytes} bytes"):
            handle = self._cl.Buffer(
                self._context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=data
            )
        return DeviceMemory(handle, data.nbytes)

    def random(self, dtype: str, elements: int, seed: int = 0) -> DeviceMemory:
        """A buffer of that many elements with random contents by type (no NaN, no denormals)."""
        return self.upload(random_array(TensorType((max(1, elements),), DType(dtype)), seed=seed))

    def allocate(self, size_bytes: int, *, written: bool = False) -> DeviceMemory:
        """A buffer of zeros; a CPU has large ones in large pages.

        Its pages are there before the first run, unless the caller says that all is `written` then.
        """
        size, flags = max(1, size_bytes), self._cl.mem_flags.READ_WRITE
        with _refusals(f"allocation of {size} bytes"):
            if self._is_paged(size):
                array = pages.in_huge_pages(size)
                handle = self._cl.Buffer(
                    self._context, flags | self._cl.mem_flags.USE_HOST_PTR, hostbuf=array
                )
                if not written:
                    array.fill(0)
                return DeviceMemory(handle, size)
            if self._has_pointers:
                return self._allocate_pointer(size)
            memory = DeviceMemory(self._cl.Buffer(self._context, flags, size), size)
            self.fill(memory, 0)
            self._queue.finish()
        return memory

    def _is_paged(self, size_bytes: int) -> bool:
        """Whether a buffer of so many bytes lies in large pages."""
        return self.spec.device_class == "cpu" and size_bytes >= pages.LEAST_BYTES

    def _allocate_pointer(self, size: int) -> DeviceMemory:
        owner = self._cl.SVMAllocation(
            self._context, size, _SHARED_ALIGN_BYTES, self._cl.svm_mem_flags.READ_WRITE
        )
        block = (ctypes.c_uint8 * size).from_address(owner.svm_ptr)
        whole = DeviceAddresses(np.ctypeslib.as_array(block), owner)
        memory = self._at(whole)
        self.fill(memory, 0)
        self._queue.finish()
        return memory

    def fill(self, buffer: DeviceMemory, byte: int) -> None:
        """Every byte of `buffer` is that one, before what is enqueued from now on."""
        value = np.uint8(byte)
        if buffer.host is not None:
            self.finish()
            buffer.host.fill(value)
            return
        with _refusals(f"fill of {buffer.bytes} bytes"):
            for part in _pieces(buffer.bytes):
                if buffer.addresses is not None:
                    piece = self._cl.SVM(buffer.addresses.range[part])
                    self._cl.enqueue_svm_memfill(self._queue, piece, value)
                else:
                    size = part.stop - part.start
                    self._cl.enqueue_fill_buffer(
                        self._queue, buffer.handle, value, part.start, size
                    )

    def _at(self, addresses: DeviceAddresses) -> DeviceMemory:
        handle = self._cl.SVM(addresses.range)
        return DeviceMemory(handle, addresses.range.nbytes, None, addresses)

    @functools.cached_property
    def _has_pointers(self) -> bool:
        """Whether values are windows of memory by their addresses, not by objects of the driver.

        Coarse-grained shared virtual memory (OpenCL 2.0). NVIDIA takes 10 us of the host for a
        launch whose arguments are sub-buffers, and 8 us for one of pointers.
        """
        return self.spec.outruns_host and self._offers("COARSE_GRAIN_BUFFER")

    def allocate_shared(self, size_bytes: int) -> DeviceMemory:
        """A buffer of zeros that the host reads and writes in place, where the device has those.

        That is fine-grained shared virtual memory (OpenCL 2.0): what was written before a launch
        is seen by it, and what it wrote is seen when it is done, without a command for either.
        Elsewhere an ordinary buffer.
        """
        if self.spec.device_class != "cpu" or not self._offers("FINE_GRAIN_BUFFER"):
            return self.allocate(size_bytes)  # a GPU would read the host's memory at each access
        with _refusals(f"allocation of {size_bytes} shared bytes"):
            if self.shares_memory and self._is_paged(size_bytes):
                host = pages.in_huge_pages(size_bytes)
            else:
                host = self._cl.fsvm_empty(
                    self._context, max(1, size_bytes), np.uint8, alignment=_SHARED_ALIGN_BYTES
                )
        host[:] = 0
        return DeviceMemory(self._cl.SVM(host), host.nbytes, host)

    @functools.cached_property
    def shares_memory(self) -> bool:
        """Whether kernels reach whatever the host can, by its address.

        That is fine-grained system memory (OpenCL 2.0). PoCL's processors have it, and do not say.
        """
        ours = self._context.devices[0].platform.name == PLATFORM
        return self.spec.device_class == "cpu" and (
            self._offers("FINE_GRAIN_SYSTEM") or (ours and self._offers("FINE_GRAIN_BUFFER"))
        )

    def lend(self, array: np.ndarray) -> DeviceMemory | None:
        """The array itself, for launches that end before it goes; on devices that share memory.

        None for one that kernels cannot use as it is: not contiguous, read-only, without elements,
        or not from a multiple of LENT_ALIGN_BYTES.
        """
        flags = array.flags
        if not (flags.c_contiguous and flags.writeable and array.size):
            return None
        address, _ = array.__array_interface__["data"]
        if address % LENT_ALIGN_BYTES:
            return None
        data = array.reshape(-1).view(np.uint8)  # buffers have no types of `ml_dtypes`
        return DeviceMemory(self._cl.SVM(data), data.nbytes, data)

    @contextlib.contextmanager
    def bound(
        self, launches: Sequence[PreparedKernel], others: Mapping[int, DeviceMemory]
    ) -> Generator[None]:
        """In the context, the launches' buffers of these numbers are others; it ends when all that
        was enqueued is done."""
        try:
            for launch in launches:
                for number, memory in others.items():
                    launch.kernel.set_arg(number, memory.handle)
            yield
        finally:
            self.finish()
            for launch in launches:
                for number in others:
                    launch.kernel.set_arg(number, launch.buffers[number].handle)

    def _offers(self, capability: str) -> bool:
        """Whether the device has shared virtual memory of that kind."""
        wanted = getattr(self._cl.device_svm_capabilities, capability)
        try:
            return bool(self._context.devices[0].svm_capabilities & wanted)
        except (AttributeError, self._cl.Error):
            return False

    def part(self, buffer: DeviceMemory, offset: int, size_bytes: int) -> DeviceMemory:
        """A window of `buffer`; `offset` is a multiple of PART_ALIGN_BYTES."""
        if buffer.host is not None:
            window = buffer.host[offset : offset + size_bytes]
            return DeviceMemory(self._cl.SVM(window), size_bytes, window)
        if buffer.addresses is not None:
            window = buffer.addresses.range[offset : offset + size_bytes]
            return self._at(replace(buffer.addresses, range=window))
        with _refusals(f"sub-buffer at {offset} of {size_bytes} bytes"):
            handle = buffer.handle.get_sub_region(offset, size_bytes)
        return DeviceMemory(handle, size_bytes)

    def write(self, buffer: DeviceMemory, array: np.ndarray, offset: int = 0) -> None:
        """Copies `array` into `buffer`, from byte `offset` on; done when the call returns.

        `offset` is a multiple of PART_ALIGN_BYTES.
        """
        data = np.ascontiguousarray(array)
        if offset + data.nbytes > buffer.bytes:
            raise DeviceError(
                f"{self.spec.name}: write of {data.nbytes} bytes from byte {offset} on to a buffer "
                f"of {buffer.bytes}"
            )
        if not data.nbytes:
            return
        if offset or buffer.addresses is not None:
            buffer = self.part(buffer, offset, data.nbytes)
        if buffer.addresses is not None and not data.flags.writeable:
            data = data.copy()  # pyopencl takes no pointer to an array that is read-only
        if buffer.host is not None:
            self.finish()
            buffer.host[: data.nbytes].view(data.dtype)[:] = data.reshape(-1)
            return
        with _refusals("write"):
            self._cl.enqueue_copy(self._queue, buffer.handle, data, is_blocking=True)

    @contextlib.contextmanager
    def mapped(self, buffer: DeviceMemory) -> Generator[np.ndarray | None]:
        """The bytes of a buffer, for any thread of the host to write all of them in the context.

        None where device and host do not share memory: `write` copies to it.
        """
        if self.spec.device_class != "cpu":
            yield None
            return
        with _refusals("map"):
            array, _ = self._cl.enqueue_map_buffer(
                *(self._queue, buffer.handle, self._cl.map_flags.WRITE_INVALIDATE_REGION),
                *(0, (buffer.bytes,), np.uint8),
            )
        try:
            yield array
        finally:
            array.base.release(self._queue)
            self.finish()

    def read(self, buffer: DeviceMemory, type: TensorType) -> np.ndarray:
        """The start of `buffer` as an array of `type`, after all enqueued work."""
        out = np.empty(type.shape, numpy_dtype(type.dtype))
        self.read_into(buffer, out)
        return out

    def read_into(self, buffer: DeviceMemory, out: np.ndarray) -> None:
        """Fills the contiguous array `out` from the start of `buffer`."""
        if not out.nbytes:
            return
        if buffer.host is not None:
            self.finish()
            out[...] = buffer.host[: out.nbytes].view(out.dtype).reshape(out.shape)
            return
        if buffer.addresses is not None:
            buffer = self.part(buffer, 0, out.nbytes)
        with _refusals("read"):
            self._cl.enqueue_copy(self._queue, out, buffer.handle, is_blocking=True)

    def writer(self, buffer: DeviceMemory, type: TensorType) -> Callable[[np.ndarray], None]:
        """`write` to the start of `buffer`, prepared for arrays of one type."""
        if buffer.host is None:
            return lambda array: self.write(buffer, array)
        view = _view(buffer.host, type)

        def write(array: np.ndarray) -> None:
            self.finish()
            np.copyto(view, array)

        return write

    def reader(self, buffer: DeviceMemory, type: TensorType) -> Callable[[], np.ndarray]:
        """`read`, prepared."""
        if buffer.host is None:
            return lambda: self.read(buffer, type)
        view = _view(buffer.host, type)

        def read() -> np.ndarray:
            self.finish()
            return view.copy()

        return read

    def shared_array(self, buffer: DeviceMemory, type: TensorType) -> np.ndarray | None:
        """The memory itself, for a host that shares it; None for a device with its own."""
        return None if buffer.host is None else _view(buffer.host, type)

    def prepare(
        self,
        program: BuiltProgram,
        name: str,
        buffers: Sequence[DeviceMemory],
        global_size: Sequence[int],
        local_size: Sequence[int],
        integers: Sequence[int] = (),
    ) -> PreparedKernel:
        """A launch of kernel `name` with its arguments set once and kept alive.

        The arguments are `buffers`, then `integers` (of type int).

        Raises: LaunchFailed if there is no such kernel or its arguments differ in number.
        """
        kernel = self._kernel(program, name)
        arguments = [*(buffer.handle for buffer in buffers), *map(np.int32, integers)]
        if kernel.num_args == 2 and len(buffers) >= LEAST_BASED and not integers:
            arguments = self._from_one_base(name, buffers)
        if kernel.num_args != len(arguments):
            raise LaunchFailed(
                f"kernel {name!r}: takes {kernel.num_args} arguments, got {len(arguments)}"
            )
        with _refusals(f"kernel {name!r}"):
            kernel.set_args(*arguments)
        return PreparedKernel(name, kernel, tuple(buffers), tuple(global_size), tuple(local_size))

    def prepare_all(
        self,
        program: BuiltProgram,
        launches: Iterable[KernelLaunch],
        buffers: Mapping[str, DeviceMemory],
    ) -> tuple[PreparedKernel, ...]:
        """The launches in order, each prepared on its buffers by their names.

        Raises: LaunchFailed as `prepare`; KeyError for a name that `buffers` lacks.
        """
        return tuple(
            self.prepare(
                program,
                launch.kernel,
                [buffers[name] for name in launch.args],
                launch.global_size,
                launch.local_size,
            )
            for launch in launches
        )

    def _kernel(self, program: BuiltProgram, name: str) -> Any:
        """The driver's kernel, from the first text that defines it.

        The driver is not asked for all names: NVIDIA's (580) writes beyond the end of its memory
        where those of a program take more than 8 KiB together, as of a network of 134 kernels.
        """
        for handle in program.handles:
            with _refusals(f"kernel {name!r}"), contextlib.suppress(self._cl.LogicError):
                return self._cl.Kernel(handle, name)
        raise LaunchFailed(f"kernel {name!r}: the program has no kernel of that name")

    def _from_one_base(self, name: str, buffers: Sequence[DeviceMemory]) -> list[Any]:
        """The lowest address, and the distances from it: the arguments of kernels that have those.

        The specification wants to be told by clSetKernelExecInfo which allocations such a kernel
        reaches. pyopencl has no call for it; a device that cannot do without fails the probe.
        """
        known = [b.addresses.range.ctypes.data for b in buffers if b.addresses is not None]
        if len(known) < len(buffers):
            raise LaunchFailed(
                f"kernel {name!r}: it reaches its {len(buffers)} buffers from one address, and "
                f"{self.spec.name} has memory without addresses; compile it for this device"
            )
        lowest = known.index(min(known))
        distances = np.asarray(known, np.uint64) - np.uint64(known[lowest])
        return [buffers[lowest].handle, distances.tobytes()]

    def enqueue(self, launches: Sequence[PreparedKernel]) -> None:
        """Puts the launches into the queue, in order, and returns at once."""
        enqueue, queue = self._cl.enqueue_nd_range_kernel, self._queue
        launch: PreparedKernel | None = None
        try:
            for launch in launches:
                enqueue(queue, launch.kernel, launch.global_size, launch.local_size)
        except self._cl.Error as error:
            raise LaunchFailed(f"{self.spec.name}: launch of {launch}: {error}") from error

    def flush(self) -> None:
        """Lets the device start on what is enqueued."""
        self._queue.flush()

    def finish(self) -> None:
        """All that was enqueued is done when the call returns."""
        try:  # a context costs more than the wait for an empty queue
            self._queue.finish()
        except self._cl.Error as error:
            raise LaunchFailed(f"{self.spec.name}: wait for the queue: {error}") from error

    def time(self, launches: Sequence[PreparedKernel], number: int = 1) -> float:
        """Wall-clock seconds of `number` rounds of the launches, from an empty queue to the end."""
        self.finish()
        start = time.perf_counter()
        for _ in range(number):
            self.enqueue(launches)
        self.finish()
        return time.perf_counter() - start

    def time_kernels(self, launches: Sequence[PreparedKernel], number: int = 1) -> float:
        """Seconds of `number` rounds of the launches, without the host's pace where it shows."""
        timed = self.time_queued if self.spec.outruns_host else self.time
        return timed(launches, number)

    def profile(self, launches: Sequence[PreparedKernel]) -> list[float]:
        """Seconds of each launch, in order.

        By the device's own clock, from one run; where the device outruns the host, and an event
        costs more than a short kernel (NVIDIA: 5 us), by `time_queued`, each several times over.
        """
        if self.spec.outruns_host:
            number = holding.PROFILED_LAUNCHES
            return [self.time_queued([launch], number) / number for launch in launches]
        self.finish()
        with _refusals("profile"):
            if self._profiled is None:
                properties = self._cl.command_queue_properties.PROFILING_ENABLE
                self._profiled = self._cl.CommandQueue(self._context, properties=properties)
            events = [
                self._cl.enqueue_nd_range_kernel(
                    self._profiled, launch.kernel, launch.global_size, launch.local_size
                )
                for launch in launches
            ]
            self._profiled.finish()
        return [1e-9 * (event.profile.end - event.profile.start) for event in events]

    def time_queued(self, launches: Sequence[PreparedKernel], number: int = 1) -> float:
        """Seconds of `number` rounds of the launches where the device never waits for the host.

        They are enqueued behind a kernel that lasts until all of them are in the queue; the result
        is the wall-clock time of both, less that of this kernel alone: the least of several times,
        taken before, between and after. Others that use the device only add to a time, so that none
        seems shorter for them; where all times of that kernel were longer so, they are taken again.
        """
        most = max(1, holding.QUEUED_LAUNCHES // max(1, len(launches)))
        hold = self._hold(min(number, most) * len(launches))
        least = holding.LEAST_LAUNCH_S * number * len(launches)
        for _ in range(holding.ATTEMPTS):
            alone, both = [self.time([hold])], list[float]()
            for start in range(0, number, most):
                both.append(self.time([hold, *[*launches] * min(most, number - start)]))
                alone.append(self.time([hold]))
            while len(alone) < holding.LEAST_SAMPLES:
                alone.append(self.time([hold]))
            found = sum(both) - len(both) * min(alone)
            if found >= least:
                return found
        return least

    def _hold(self, launches: int) -> PreparedKernel:
        """A launch that keeps the device busy while so many others are enqueued."""
        launch, step_s = self._holding
        steps = max(1, int(launches * holding.ENQUEUE_S / step_s))
        launch.kernel.set_arg(1, np.int32(steps))
        return launch

    @functools.cached_property
    def _holding(self) -> tuple[PreparedKernel, float]:
        """The holding kernel, and the seconds of one of its steps, whose number is set at each
        use: preparing another launch of it takes a millisecond."""
        program, out = self.build(holding.TEXT), self.allocate(4)
        launch = self.prepare(program, "hold", [out], (1, 1, 1), (1, 1, 1), [holding.HOLD_STEPS])
        self.time([launch])
        return launch, self.time([launch]) / holding.HOLD_STEPS


def _pieces(size: int) -> Iterator[slice]:
    """Parts of so many bytes that a driver fills at once."""
    return (slice(at, min(at + MOST_FILLED, size)) for at in range(0, size, MOST_FILLED))


def _view(memory: np.ndarray, type: TensorType) -> np.ndarray:
    """The first bytes of shared memory as an array of that type."""
    return memory[: type.bytes].view(type.dtype).reshape(type.shape)


@functools.cache
def _context(handle: Any) -> Any:
    """The process's context on that device, one however often the device is opened.

    NVIDIA's driver (580) keeps what a context takes when the last reference to it is gone: 520 MB
    of an H200's memory, 6 threads and 18 files, and it refuses the 102nd.
    """
    return opencl().Context([handle])


def open_device(name: str = "pocl") -> Device:
    """The device of that name, open. Raises: InputError naming the devices that exist."""
    spec, handle = find_device(name)
    return Device(handle, spec)


def _build_log(message: str) -> str:
    """The compiler's part of pyopencl's message, or all of it."""
    log = message.partition(">:\n\n")[2].rpartition("\n(options:")[0]
    return (log or message).strip()


@contextlib.contextmanager
def _refusals(action: str) -> Generator[None, None, None]:
    """Turns an error of OpenCL or the system into LaunchFailed that says what was tried."""
    try:
        yield
    except (opencl().Error, OSError) as error:
        raise LaunchFailed(f"{action}: {error}") from error
