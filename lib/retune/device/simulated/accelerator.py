"""The simulated VTA as a device: its name, its description, and what measures on it.

`vta-sim` is the default variant beside the processor of `pocl`, which runs what the accelerator
does not; `vta-sim:VARIANT` another one, `vta-sim:VARIANT@BOARD` one at the pace of a board, and
`vta-sim:FILE.json` that of a `vta_config.json` as TVM has it.

A candidate is lowered, executed, compared with its reference bit by bit, and simulated in time, in
a process of its own: cycles are the measurement, so they are the same each time, one repeat is all,
and nobody has to be quiet meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.errors import InputError
from retune.core.schema import from_json
from retune.core.target import DeviceSpec
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.messages import Done
from retune.device.measure.workload import DirectRunner, MeasureOptions, Workload
from retune.device.opencl.host import available_cores
from retune.device.opencl.runtime import Device
from retune.device.simulated.names import NAME, is_accelerator
from retune.records.schema import Measurement, failed
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.source import PackedSource
from retune.targets.vta.workload import OUTPUT

MODEL_VERSION = "cycles-1"
"""Of the model of time: raised when modules take other times."""

_JSON = ".json"
_ENTRY = "retune.device.simulated.accelerator_child"
_ONE_THREAD: dict[str, str] = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Processes share the cores; products of matrices are not to start threads in each."""
_DEADLINE_S = 120.0
"""For a candidate: simulators take a second at most."""


def config_file(device: str) -> str:
    """The path of the configuration that the device's name names; empty for another name."""
    variant = device.partition(":")[2]
    return variant if is_accelerator(device) and variant.endswith(_JSON) else ""


def config_named(device: str) -> VtaConfig:
    """The variant that the device's name says. Raises: InputError for none."""
    if path := config_file(device):
        return _read_config(Path(path).expanduser())
    variant, _, target = device.partition(":")[2].partition("@")
    return VtaConfig.from_name(variant, target or VtaConfig().target) if variant else VtaConfig()


def name_of(config: VtaConfig) -> str:
    """The device of that variant. It needs no file, wherever the configuration was read from."""
    board = "" if config.target == VtaConfig().target else f"@{config.target}"
    return f"{NAME}:{config.name}{board}"


def _read_config(path: Path) -> VtaConfig:
    """The variant of a `vta_config.json`. Raises: InputError naming the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: expected a vta_config.json, got no such file ({error})"
        ) from None
    stated = from_json(dict[str, object], text, where=str(path), error=InputError)
    try:
        return VtaConfig.from_dict(stated)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def config_of(spec: DeviceSpec) -> VtaConfig | None:
    """The accelerator of a device; None if it has none. Raises: InputError for none of ours."""
    if not spec.accelerator:
        return None
    name, _, target = spec.accelerator.partition(" ")
    return VtaConfig.from_name(name, target)


def described(device: str, base: DeviceSpec) -> DeviceSpec:
    """The device of that name, beside the base. Raises: InputError for no variant."""
    config = config_named(device)
    return replace(
        base,
        name=name_of(config) if config_file(device) else device,
        model=f"VTA {config.name} ({config.target}, {config.board.mhz:g} MHz)",
        platform="simulated",
        driver=MODEL_VERSION,
        opencl="",
        accelerator=f"{config.name} {config.target}",
        host="simulated",
        affinity="",
    )


class AcceleratorDevice(Device):
    """The base device under the accelerator's description: kernels run there."""

    def __init__(self, handle: Any, base: DeviceSpec, device: str) -> None:
        """`base` and `handle` are the base device's, as `catalogue.find_device` gives them."""
        super().__init__(handle, base)
        self.spec = described(device, base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Use these arrays and this reference for candidates of the workload from now on."""

    key: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    forgotten: tuple[str, ...] = ()
    """Workloads whose arrays are not needed any longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulate:
    """Lower, execute, compare and time the candidate; the reply is a Measurement."""

    workload_key: str
    source: PackedSource


REQUESTS: tuple[type, ...] = (Prepare, Simulate)
"""What its processes are asked."""


class AcceleratorRunner(DirectRunner):
    """A Runner for the simulated accelerator: as many candidates at once as there are processes."""

    def __init__(self, spec: DeviceSpec, processes: int | None = None) -> None:
        """Starts nothing yet. `processes` is by default the number of cores that may be used."""
        super().__init__(spec)
        count = processes or available_cores()
        self._children = [
            Child(spec.name, entry=_ENTRY, environment=_ONE_THREAD, replies=(Done, Measurement))
            for _ in range(count)
        ]
        self._free: LifoQueue[Child] = LifoQueue()
        """The last one that measured is the next one: no more are started than measure at once."""
        for child in reversed(self._children):
            self._free.put(child)

    @property
    def capacity(self) -> int:
        """The number of processes."""
        return len(self._children)

    @property
    def slots(self) -> int:
        """One more than are simulated at once: it is proposed meanwhile."""
        return self.capacity + 1

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,  # noqa: ARG002  nothing is repeated
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order; a failure is a row with its reason.

        Raises: InputError for an unknown workload, or a candidate that is none of an accelerator.
        """
        workload = self._workload(workload_key)
        wanted = [self._packed(workload, source) for source in candidates]
        child = self._free.get()
        try:
            return [self._one(child, workload, source) for source in wanted]
        finally:
            self._free.put(child)

    def close(self) -> None:
        """Ends all processes."""
        for child in self._children:
            child.close()

    def _packed(self, workload: Workload, source: ProgramSource) -> PackedSource:
        """The candidate. Raises: InputError if it is none, or does not fit the arrays."""
        if not isinstance(source, PackedSource):
            raise InputError(f"{self.spec.name}: expected a packed layer, got kernels {source.key}")
        for name, (shape, _) in source.work.shapes(source.config).items():
            array = (workload.outputs if name == OUTPUT else workload.inputs).get(name)
            if array is None or array.size != prod(shape):
                got = "none" if array is None else str(array.shape)
                raise InputError(
                    f"workload {workload.key}: expected {name!r} of shape {shape}, got {got}"
                )
        return source

    def _provide(self, child: Child, workload: Workload) -> None:
        """The child has the workload's arrays, and none that are not needed."""
        if workload in child.holds:
            return
        held = [known for known in child.holds if isinstance(known, Workload)]
        stale = [known for known in held if self._workloads.get(known.key) is not known]
        child.request(
            Prepare(
                key=workload.key,
                inputs=workload.inputs,
                outputs=workload.outputs,
                forgotten=tuple(known.key for known in stale),
            ),
            _DEADLINE_S,
        )
        child.holds.difference_update(stale)
        child.holds.add(workload)

    def _one(self, child: Child, workload: Workload, source: PackedSource) -> Measurement:
        try:
            child.ensure()
            self._provide(child, workload)
            reply = child.request(Simulate(workload_key=workload.key, source=source), _DEADLINE_S)
        except ChildLostError as lost:
            return failed(lost.status, str(lost))
        assert isinstance(reply, Measurement)
        return reply
