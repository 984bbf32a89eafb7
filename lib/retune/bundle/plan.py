"""NetworkPlan: everything that a bundle holds, as plain data, and the invariants it keeps.

Read NetworkPlan first, then `verify_plan`. Every value of the network is one PlanBuffer; an Alias
says that a value lies in the memory of another one. What runs is launches of kernels and, between
them, host steps in numpy. This file knows no device and no file.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from retune.codegen.views import Columns
from retune.core.dtypes import DTYPES, UNKNOWN, itemsize
from retune.core.errors import ModelError, VerifyError
from retune.core.target import DeviceSpec
from retune.graph.ops.host import HostModel, open_host

MAX_ERROR_NOTE = "max_error"
"""The note that says what error of a layer the user allowed, as a part of its output's range."""
LARGEST_ERROR_NOTE = "largest_error"
"""The note that says the largest error of the strategies that the plan uses; 0: all are direct."""

BufferRole = Literal["input", "output", "weight", "temp"]

Form = Literal["persistent", "inline", "queued"]
"""How the launches get onto the device: as one launch of workers that stay for all of them, in a
row in the thread that calls, or one by one through a queue. Where host steps stand between the
launches, each part of the launches gets onto it in that way: one launch of workers for each part,
in turns with the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBuffer:
    """One value of the network: its type, its logical shape and what it is for."""

    name: str
    dtype: str
    elements: int
    role: BufferRole
    shape: tuple[int, ...]
    """Logical shape. A packed weight may hold more elements than its shape says; nothing else.

    An output that a host step makes may have UNKNOWN extents; its elements are 0 then, as nothing
    is kept for it.
    """

    @property
    def bytes(self) -> int:
        """Size of the value in memory, without alignment."""
        return self.elements * itemsize(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLaunch:
    """One kernel launch: which kernel, on which buffers, over which range."""

    kernel: str
    """Entry point, a key of NetworkPlan.kernels."""
    args: tuple[str, ...]
    """Buffer names in the order of the kernel's arguments."""
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    label: str
    """Name of the fused group that the launch belongs to."""
    flops: int
    """Arithmetic operations of one launch."""
    bytes: int
    """Least traffic of one launch."""
    writes: tuple[str, ...]
    """The arguments that the kernel writes: at least one."""

    @property
    def read(self) -> tuple[str, ...]:
        """The arguments that the kernel only reads."""
        return tuple(name for name in self.args if name not in self.writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHost:
    """One step in numpy, on the host: an ONNX model (`graph.ops.host`) on some buffers."""

    label: str
    """Name of the group that the step is."""
    model: bytes
    """Serialised; its inputs and outputs are those of the step, in order."""
    inputs: tuple[str, ...]
    """Buffer names."""
    outputs: tuple[str, ...]
    """Buffer names; '' for what nobody reads."""
    after: int
    """Launches that run before it."""

    @property
    def read(self) -> tuple[str, ...]:
        """Its inputs."""
        return self.inputs

    @property
    def writes(self) -> tuple[str, ...]:
        """Its outputs that somebody reads."""
        return tuple(name for name in self.outputs if name)

    @property
    def opened(self) -> HostModel:
        """The step, ready to run. Raises: ModelError if it is no host step."""
        return open_host(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Launches, and the host steps that run when they are done; there may be none of either."""

    first: int
    """Number of the first launch."""
    end: int
    """Of the launch after the last one."""
    hosts: tuple[PlanHost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """`value` is the memory of `of` under another shape; both are buffers of the plan."""

    value: str
    of: str
    columns: Columns | None = None
    """Which columns of the rows of `of`; None: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """A compiled network: kernels, buffers, launches in order, and packed weights."""

    name: str
    model_key: str
    """Content key of the model that it was compiled from."""
    kernels: Mapping[str, str]
    """Entry point -> OpenCL C text that defines it."""
    options: tuple[str, ...]
    """Build options of every kernel."""
    buffers: tuple[PlanBuffer, ...]
    launches: tuple[PlanLaunch, ...]
    inputs: tuple[str, ...]
    """Buffers of role `input`, in the model's order."""
    outputs: tuple[str, ...]
    """Buffers of role `output`, in the model's order."""
    weights: Mapping[str, np.ndarray]
    """Arrays of the buffers of role `weight`, already packed."""
    device: DeviceSpec
    """The device that the kernels were tuned for."""
    notes: Mapping[str, str]
    """Free text for people and reports, such as where the records came from."""
    aliases: tuple[Alias, ...] = ()
    form: Form = "persistent"
    """The form to run it in; a device that lacks it takes another, and the results are the same."""
    hosts: tuple[PlanHost, ...] = ()
    """Host steps in the order in which they run."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Input -> how many values it may have, from 0 on: it holds indices. Of random data, that is
    valid; a run does not look."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What runs in turns on the device and on the host, in order."""
        ends = sorted({*(host.after for host in self.hosts), len(self.launches)})
        return tuple(
            Part(first=first, end=end, hosts=tuple(h for h in self.hosts if h.after == end))
            for first, end in zip([0, *ends], ends, strict=False)
        )

    @property
    def steps(self) -> tuple["PlanLaunch | PlanHost", ...]:
        """The launches and the host steps in the order in which they run."""
        return tuple(
            step
            for part in self.parts
            for step in (*self.launches[part.first : part.end], *part.hosts)
        )

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input, in the model's order."""
        return {name: self.buffer(name).shape for name in self.inputs}

    def buffer(self, name: str) -> PlanBuffer:
        """The buffer of that name. Raises: KeyError."""
        for entry in self.buffers:
            if entry.name == name:
                return entry
        raise KeyError(name)


def storage_roots(plan: NetworkPlan) -> dict[str, str]:
    """Maps every buffer to the buffer at the end of its alias chain, whose memory it shares.

    Raises: VerifyError if the aliases form a cycle.
    """
    parents = {alias.value: alias.of for alias in plan.aliases}
    roots: dict[str, str] = {}
    for entry in plan.buffers:
        chain = [entry.name]
        while (parent := parents.get(chain[-1])) is not None:
            if parent in chain:
                path = " -> ".join([*chain, parent])
                raise _broken(plan, "aliases", "chains that end", f"a cycle: {path}")
            chain.append(parent)
        roots[entry.name] = chain[-1]
    return roots


def storage_roles(plan: NetworkPlan) -> dict[str, BufferRole]:
    """Maps every storage root to what its memory is for.

    An input or weight keeps its role. Memory of which any alias is an output is an output.
    """
    roots = storage_roots(plan)
    roles: dict[str, BufferRole] = {}
    for entry in plan.buffers:
        root = roots[entry.name]
        if root == entry.name and entry.role in ("input", "weight"):
            roles[root] = entry.role
        elif entry.role == "output":
            roles.setdefault(root, "output")
    return {root: roles.get(root, "temp") for root in dict.fromkeys(roots.values())}


def host_roots(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that host steps read or write."""
    roots = storage_roots(plan)
    return frozenset(roots[v] for host in plan.hosts for v in (*host.read, *host.writes))


def made_by_hosts(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that host steps write."""
    return frozenset(value for host in plan.hosts for value in host.writes)


def roots_off_device(plan: NetworkPlan) -> frozenset[str]:
    """Storage roots that exist on the host only: what host steps make and no launch reads."""
    roots = storage_roots(plan)
    read = {roots[value] for launch in plan.launches for value in launch.args}
    return made_by_hosts(plan) - read


def verify_plan(plan: NetworkPlan) -> None:
    """Holds after the call: the plan keeps every invariant of CHECKS. Raises: VerifyError."""
    for check in CHECKS:
        check(plan)


def check_names_unique(plan: NetworkPlan) -> None:
    """No two buffers share a name."""
    seen: set[str] = set()
    for entry in plan.buffers:
        if entry.name in seen:
            raise _broken(plan, f"buffer {entry.name}", "one buffer of each name", "two")
        seen.add(entry.name)


def check_buffer_types(plan: NetworkPlan) -> None:
    """Each buffer has a known type, a positive size, and the elements of its shape.

    A weight is exempt from the last: packing may pad it. Inputs and outputs may have no elements:
    that is up to the model, and no launch reads or writes them. So may what host steps make.
    """
    made = {value for host in plan.hosts for value in host.outputs}
    for entry in plan.buffers:
        where = f"buffer {entry.name}"
        if entry.dtype not in DTYPES:
            raise _broken(plan, where, f"one of {', '.join(DTYPES)}", entry.dtype)
        if UNKNOWN in entry.shape:
            _check_unknown(plan, entry, made)
            continue
        needed = entry.role in ("weight", "temp") and entry.name not in made
        if entry.elements < (1 if needed else 0):
            raise _broken(plan, where, "at least one element", str(entry.elements))
        if entry.role != "weight" and prod(entry.shape) != entry.elements:
            expected = f"{prod(entry.shape)} elements of shape {entry.shape}"
            raise _broken(plan, where, expected, str(entry.elements))


def _check_unknown(plan: NetworkPlan, entry: PlanBuffer, made: Container[str]) -> None:
    """A value of unknown extents is an output that a host step makes, and no step reads."""
    where = f"buffer {entry.name}"
    if entry.role != "output" or entry.name not in made or entry.elements:
        expected = "known extents, or no elements of an output that a host step makes"
        raise _broken(plan, where, expected, f"{entry.elements} of shape {entry.shape}")
    read = [step for step in (*plan.launches, *plan.hosts) if entry.name in step.read]
    if read:
        raise _broken(plan, where, "known extents of what is read", f"{entry.shape}")


def check_interface(plan: NetworkPlan) -> None:
    """`inputs` and `outputs` list exactly the buffers of these roles, each once."""
    sides: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("input", plan.inputs),
        ("output", plan.outputs),
    )
    for role, listed in sides:
        having = [entry.name for entry in plan.buffers if entry.role == role]
        if sorted(listed) != sorted(having):
            raise _broken(plan, f"{role}s", f"the buffers of role {role}: {having}", str(listed))
    if not plan.outputs:
        raise _broken(plan, "outputs", "at least one", "none")


def check_weights(plan: NetworkPlan) -> None:
    """Each weight buffer has one array of its type and size, and there are no others."""
    sizes = {entry.name: entry for entry in plan.buffers if entry.role == "weight"}
    if sizes.keys() != plan.weights.keys():
        strays = sorted(sizes.keys() ^ plan.weights.keys())
        raise _broken(plan, "weights", "one array for each weight buffer", f"mismatch at {strays}")
    for name, entry in sizes.items():
        array = plan.weights[name]
        if array.dtype != np.dtype(entry.dtype) or array.size != entry.elements:
            expected = f"{entry.elements} elements of {entry.dtype}"
            raise _broken(plan, f"weight {name}", expected, f"{array.size} of {array.dtype}")


def check_aliases(plan: NetworkPlan) -> None:
    """An alias joins two buffers of one type and size; chains end; inputs and weights are roots."""
    buffers = {entry.name: entry for entry in plan.buffers}
    seen: set[str] = set()
    for alias in plan.aliases:
        where = f"alias {alias.value} of {alias.of}"
        _check_known(plan, where, (alias.value, alias.of), buffers)
        value, of = buffers[alias.value], buffers[alias.of]
        if alias.value in seen:
            raise _broken(plan, where, "one alias for each value", "a second one")
        seen.add(alias.value)
        if value.role in ("input", "weight"):
            raise _broken(plan, where, "a temp or output as the value", value.role)
        if alias.columns is not None:
            _check_columns(plan, alias, value, of)
        elif (value.dtype, value.elements) != (of.dtype, of.elements):
            got = f"{value.elements} of {value.dtype}"
            raise _broken(plan, where, f"{of.elements} elements of {of.dtype}", got)
    storage_roots(plan)


def _check_columns(plan: NetworkPlan, alias: Alias, value: PlanBuffer, of: PlanBuffer) -> None:
    """The columns are a temporary's, and lie in the rows of what they are columns of."""
    columns = alias.columns
    assert columns is not None
    where, width = f"alias {alias.value} of {alias.of}", (of.shape or (1,))[-1]
    own = (value.shape or (1,))[-1]
    fits = columns.width == width and 0 <= columns.offset <= width - own
    rows = value.elements // max(1, own) == of.elements // max(1, width)
    if value.role != "temp" or value.dtype != of.dtype or not (fits and rows):
        expected = f"a temp of columns in rows of {width} of {of.dtype}"
        got = f"{value.role} {value.shape} of {value.dtype}, {columns}"
        raise _broken(plan, where, expected, got)


def check_launch_arguments(plan: NetworkPlan) -> None:
    """Each launch names a known kernel, known buffers, and writes some of its arguments."""
    buffers = {entry.name: entry for entry in plan.buffers}
    for launch in plan.launches:
        where = _where(launch)
        if launch.kernel not in plan.kernels:
            raise _broken(plan, where, "a kernel of the plan", launch.kernel)
        if not launch.writes:
            raise _broken(plan, where, "a kernel that writes an argument", "writes to none")
        _check_known(plan, where, launch.args, buffers)
        strays = [name for name in launch.writes if name not in launch.args]
        if strays:
            raise _broken(plan, where, "writes that are arguments", str(strays))


def check_launch_ranges(plan: NetworkPlan) -> None:
    """Each range is positive, has one to three axes, and is divided by its work-group."""
    for launch in plan.launches:
        where, sizes = _where(launch), (launch.global_size, launch.local_size)
        if not 1 <= len(launch.global_size) <= 3 or len(launch.local_size) != len(
            launch.global_size
        ):
            raise _broken(plan, where, "1 to 3 axes, as many local as global", str(sizes))
        if min(*launch.global_size, *launch.local_size) < 1:
            raise _broken(plan, where, "positive ranges", str(sizes))
        if any(g % n for g, n in zip(launch.global_size, launch.local_size, strict=True)):
            raise _broken(plan, where, "a global size that the local size divides", str(sizes))
        limit = plan.device.max_work_group
        if prod(launch.local_size) > limit:
            raise _broken(plan, where, f"at most {limit} work-items", str(launch.local_size))


def check_kernel_texts(plan: NetworkPlan) -> None:
    """Each kernel's text defines its entry point."""
    for entry, text in plan.kernels.items():
        if not re.search(rf"\b{re.escape(entry)}\s*\(", text):
            expected = f"a text that defines {entry}"
            raise _broken(plan, f"kernel {entry}", expected, text[:60] or "an empty text")


def check_writable(plan: NetworkPlan) -> None:
    """No launch writes an input or a weight, nor memory that it also reads."""
    roots, roles = storage_roots(plan), storage_roles(plan)
    columns = {alias.value: alias.columns for alias in plan.aliases}

    def apart(a: str, b: str) -> bool:
        """Whether both are columns of one value, without a common one."""
        one, other = columns.get(a), columns.get(b)
        if one is None or other is None or one.width != other.width:
            return False
        first, last = sorted([(one.offset, a), (other.offset, b)])
        return first[0] + plan.buffer(first[1]).shape[-1] <= last[0]

    for launch in plan.launches:
        for name in launch.writes:
            role = roles[roots[name]]
            if role in ("input", "weight"):
                raise _broken(plan, _where(launch), "writes to temps or outputs", f"{role} {name}")
            same = (other for other in launch.read if roots[other] == roots[name])
            if any(not apart(other, name) for other in same):
                expected = "memory that is not read through another argument"
                raise _broken(plan, _where(launch), expected, f"a write to {name}")


def check_hosts(plan: NetworkPlan) -> None:
    """Each host step is a model of its own, in its place, on known buffers of the model's types."""
    buffers = {entry.name: entry for entry in plan.buffers}
    last = 0
    for host in plan.hosts:
        where = _where(host)
        if not last <= host.after <= len(plan.launches):
            expected = f"a place from {last} to {len(plan.launches)}, after the steps before it"
            raise _broken(plan, where, expected, str(host.after))
        last = host.after
        _check_known(plan, where, (*host.read, *host.writes), buffers)
        try:
            step = host.opened
        except ModelError as error:
            raise _broken(plan, where, "a model that is a host step", str(error)) from error
        _check_host_types(plan, host, step)


def _check_host_types(plan: NetworkPlan, host: PlanHost, step: HostModel) -> None:
    """What the step reads and makes is what its model takes and makes."""
    where = _where(host)
    sides = (("inputs", host.inputs, step.inputs), ("outputs", host.outputs, step.outputs))
    for side, names, own in sides:
        if len(names) != len(own) or (side == "inputs" and "" in names):
            raise _broken(plan, where, f"{len(own)} {side}: {', '.join(own)}", str(names))
    for name, dtype in zip(host.inputs, step.dtypes, strict=True):
        if dtype not in ("", plan.buffer(name).dtype):
            raise _broken(plan, where, f"input {name} of {dtype}", plan.buffer(name).dtype)
    for name, kind in zip(host.outputs, step.types, strict=True):
        entry = plan.buffer(name) if name else None
        if entry and (entry.dtype, entry.shape) != (kind.dtype, kind.shape):
            raise _broken(plan, where, f"output {name} of {kind}", f"{entry.dtype}{entry.shape}")


def check_host_writes(plan: NetworkPlan) -> None:
    """What a host step makes is memory of its own that nothing else writes."""
    roots = storage_roots(plan)
    written = [roots[name] for launch in plan.launches for name in launch.writes]
    for host in plan.hosts:
        for name in host.writes:
            role = plan.buffer(name).role
            if role in ("input", "weight") or roots[name] != name:
                expected = "writes to temps or outputs of their own memory"
                raise _broken(plan, _where(host), expected, f"{role} {name} in {roots[name]}")
            if name in written:
                raise _broken(plan, _where(host), f"nothing else that writes {name}", "two writers")
            written.append(name)


def check_written_before_read(plan: NetworkPlan) -> None:
    """What a step reads, and every output, was written before (or is an input or a weight)."""
    roots, roles = storage_roots(plan), storage_roles(plan)
    full = {root for root, role in roles.items() if role in ("input", "weight")}
    for step in plan.steps:
        for name in step.read:
            if roots[name] not in full:
                expected = f"{name} written by an earlier step"
                raise _broken(plan, _where(step), expected, "a read of it")
        full.update(roots[name] for name in step.writes)
    for name in plan.outputs:
        if roots[name] not in full and plan.buffer(name).elements:
            raise _broken(plan, f"output {name}", "a step that writes it", "none")


CHECKS: tuple[Callable[[NetworkPlan], None], ...] = (
    check_names_unique,
    check_buffer_types,
    check_interface,
    check_weights,
    check_aliases,
    check_launch_arguments,
    check_launch_ranges,
    check_kernel_texts,
    check_writable,
    check_hosts,
    check_host_writes,
    check_written_before_read,
)
"""One invariant each, in an order where a check may rely on those before it."""


def _check_known(
    plan: NetworkPlan, where: str, names: Iterable[str], buffers: Mapping[str, PlanBuffer]
) -> None:
    for name in names:
        if name not in buffers:
            raise _broken(plan, where, "names of buffers of the plan", name)


def _where(step: PlanLaunch | PlanHost) -> str:
    if isinstance(step, PlanHost):
        return f"host step {step.label}"
    return f"launch {step.label} ({step.kernel})"


def _broken(plan: NetworkPlan, where: str, expected: str, got: str) -> VerifyError:
    return VerifyError(f"plan {plan.name}: {where}: expected {expected}; got {got}")
