"""What tests of module share with others."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retune.codegen.source import KernelLaunch
from retune.core.dtypes import TensorType
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.opencl.binaries import Binaries
from retune.device.opencl.runtime import PreparedKernel

KERNELS: dict[str, Callable[..., None]] = {
    "add": lambda a, b, y: np.add(a, b, out=y),
    "scale": lambda x, y: np.multiply(x, 2, out=y),
}


@dataclass
class FakeDevice:
    """A device of numpy kernels that keeps a log of what it was asked to do."""

    spec: DeviceSpec = GENERIC_CPU
    has_atomics: bool = False
    in_caller: "FakeDevice | None" = None
    log: list[str] = field(default_factory=list)
    built: str = ""
    clock: list[float] = field(default_factory=list)
    origin: str = "source"
    """Where programs come from, as `Binaries.use` takes it."""

    def build(self, *texts: str, options: Sequence[str] = ()) -> str:
        self.log.append("build")
        self.built = "\n".join(texts)
        return self.built

    def upload(self, array: np.ndarray) -> np.ndarray:
        self.log.append("upload")
        return np.array(array).reshape(-1).view(np.uint8)

    @contextmanager
    def compiled(self, binaries: Binaries) -> Generator[None]:
        binaries.use("program", self.origin)
        yield

    def allocate(self, size_bytes: int, *, written: bool = False) -> np.ndarray:
        self.log.append(f"allocate {size_bytes}")
        return np.zeros(size_bytes, np.uint8)

    def allocate_shared(self, size_bytes: int) -> np.ndarray:
        return self.allocate(size_bytes)

    def part(self, buffer: np.ndarray, offset: int, size_bytes: int) -> np.ndarray:
        return buffer[offset : offset + size_bytes]

    @contextmanager
    def mapped(self, buffer: np.ndarray) -> Generator[np.ndarray]:
        self.log.append("map")
        yield buffer

    def write(self, buffer: np.ndarray, array: np.ndarray, offset: int = 0) -> None:
        self.log.append("write")
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer[offset : offset + raw.size] = raw

    def writer(self, buffer: np.ndarray, type: TensorType) -> Callable[[np.ndarray], None]:
        return lambda array: self.write(buffer, array)

    def reader(self, buffer: np.ndarray, type: TensorType) -> Callable[[], np.ndarray]:
        return lambda: self.read(buffer, type)

    def read(self, buffer: np.ndarray, type: TensorType) -> np.ndarray:
        self.log.append("read")
        return buffer[: type.bytes].view(type.dtype).reshape(type.shape).copy()

    def prepare(
        self,
        program: str,
        name: str,
        buffers: Sequence[np.ndarray],
        global_size: Sequence[int],
        local_size: Sequence[int],
    ) -> PreparedKernel:
        self.log.append(f"prepare {name}")
        arrays: Any = tuple(buffer.view(np.float32) for buffer in buffers)
        return PreparedKernel(name, None, arrays, tuple(global_size), tuple(local_size))

    def prepare_all(
        self, program: str, launches: Sequence[KernelLaunch], buffers: Mapping[str, np.ndarray]
    ) -> tuple[PreparedKernel, ...]:
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

    def enqueue(self, launches: Sequence[PreparedKernel]) -> None:
        self.log.append(f"enqueue {len(launches)}")
        for launch in launches:
            KERNELS[launch.name](*launch.buffers)

    def finish(self) -> None:
        self.log.append("finish")

    def profile(self, launches: Sequence[object]) -> list[float]:
        return [self.clock.pop(0) for _ in launches]
