"""What a device offers beside OpenCL's own: ways of intrinsics, launches from one address, and
groups that may stay.

Each is built there, run, and compared.

No name and no version is asked. A process of its own does it, as an instruction that is not there
may end it; what it found is kept for the machine, by the device and by the texts that were tried.
Read `offered`.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from retune.codegen.kernel import Function
from retune.codegen.lower import lower
from retune.codegen.network.resident import WAYS
from retune.codegen.opencl.intrinsics import LANGUAGE, function_lines, function_name
from retune.codegen.source import KernelSource
from retune.codegen.target import CPU, ONE_BASE
from retune.core.dtypes import INT32, UINT8
from retune.core.keys import content_key
from retune.core.locking import own_file
from retune.core.replacing import replacing
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic, Shape, Way, intrinsics
from retune.ir.expr import Expr, Load, const, redirect
from retune.ir.stmt import from_dag
from retune.ir.te import Axis, Dag, Tensor, placeholder
from retune.schedule.schedule import Schedule

BASED_PROGRAM = """
typedef struct { ulong x, y, z; } probe_at;
__kernel void probe(__global uchar* base, const probe_at at)
{
  const size_t i = get_global_id(0);
  ((__global int*)(base + at.z))[i] =
      ((__global const int*)(base + at.x))[i] - ((__global const int*)(base + at.y))[i];
}
"""
"""Differences of what lies in two allocations, into a third."""

_LOG = logging.getLogger(__name__)
_DEADLINE_S = 120.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from retune.device.opencl.probe_child import main; main(sys.argv[2], json.loads(sys.argv[3]))"
)


def offered(spec: DeviceSpec) -> tuple[str, ...]:
    """The ways that the device has, by their full names, the best of each intrinsic first; then
    `ONE_BASE`, where kernels reach all memory from one address, and of `resident.WAYS` those by
    which groups may stay for a whole run.

    Probes it if this machine has not done so yet, which takes a second or two.
    """
    names = [*(name for name, _, _ in ways()), ONE_BASE]
    if spec.device_class != "cpu":  # where `persistent` does the same for groups of one item
        names += WAYS
    path = own_file("instructions", ".json", spec.fingerprint, spec.host, _texts())
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = None
    if not isinstance(known, list):
        known = _probe(spec.name, names)
        try:
            with replacing(path) as stream:
                stream.write(json.dumps(known).encode())
        except OSError as error:
            _LOG.debug("%s cannot be kept: %s", path, error)
    return tuple(name for name in names if name in known)


def ways() -> Iterator[tuple[str, Intrinsic, Way]]:
    """All but those that need no probe."""
    for entry in intrinsics():
        for way in entry.ways[:-1]:
            if LANGUAGE in way.text:
                yield entry.full_name(way), entry, way


def _texts() -> str:
    """A digest of all that is tried."""
    tried = [(program_of(entry, way), way.options) for _, entry, way in ways()]
    return content_key(*tried, BASED_PROGRAM, *(way.text for way in WAYS.values()))


def _probe(device: str, names: Sequence[str]) -> list[str]:
    """Those of the ways that work. One that ends the process, or hangs, does not."""
    left, found = list(names), list[str]()
    while left:
        command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), device, json.dumps(left)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
            )
            lines, why = done.stdout.splitlines(), f"exit code {done.returncode}: {done.stderr}"
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            lines, why = output.decode().splitlines(), "no answer"
        told = [line.split() for line in lines if line.startswith(("works ", "fails "))]
        found += [name for verdict, name in told if verdict == "works"]
        if len(told) < len(left):
            _LOG.debug("%s: probing %s ended: %s", device, left[len(told)], why)
        left = left[len(told) + 1 :]
    return found


def program_of(entry: Intrinsic, way: Way) -> str:
    """The way's functions, and for each of them a kernel that calls it once in each item.

    Of tiles, kernels of one product each, see `tile_kernel`.
    """
    if entry.op.axes:
        return "\n".join(tile_kernel(entry, way, shape).text for shape in entry.shapes(way))
    shapes = entry.shapes(way)
    lines = function_lines(Function(entry.name, shape, way.name) for shape in shapes)
    for shape in shapes:
        name = function_name(entry.name, shape)
        kinds = ["uint" if dtype == UINT8 else "int" for dtype in (*shape.dtypes, INT32)]
        given = [f"__global const {kind}* x{i}" for i, kind in enumerate(kinds)]
        n = shape.lanes
        read = [f"vload{n}(i, x{i_})" if n > 1 else f"x{i_}[i]" for i_ in range(len(kinds))]
        call = f"{name}({', '.join(read)})"
        lines += [
            f"__kernel void probe_{name}({', '.join(given)}, __global int* y) {{",
            "  const size_t i = get_global_id(0);",
            f"  vstore{n}({call}, i, y);" if n > 1 else f"  y[i] = {call};",
            "}",
        ]
    return "\n".join([*lines, ""])


def tile_kernel(entry: Intrinsic, way: Way, shape: Shape) -> KernelSource:
    """A kernel of the pattern alone, on operands of these types: it makes one tile, or that of a
    whole warp."""
    typed = {o.name: dtype for o, dtype in zip(entry.operands, shape.dtypes, strict=True)}
    inputs = {
        tensor.name: placeholder(tensor.name, size, typed[tensor.name])
        for tensor, size in zip(entry.op.inputs, operand_shapes(entry), strict=True)
    }

    def swapped(load: Load) -> Expr:
        return Load(inputs[load.buffer.name].buffer, load.indices)

    sizes = [axis.extent * n for axis, n in zip(entry.op.axes, _items(entry), strict=True)]
    op = replace(
        entry.op,
        axes=tuple(Axis(a.var, n) for a, n in zip(entry.op.axes, sizes, strict=True)),
        body=redirect(entry.op.body, swapped),
        inputs=(*inputs.values(),),
    )
    made = Tensor(replace(entry.pattern.buffer, shape=tuple(map(const, sizes))), op)
    s = Schedule(from_dag(Dag((made,)), f"probe_{function_name(entry.name, shape)}"))
    if entry.warp is not None:
        _bind_items(s, entry, made.name)
    own = [axis.var for axis in (*op.axes, *op.reduce_axes)]
    axes = dict(zip(own, s.loops(made.name)[-len(own) :], strict=True))
    s.reorder(*(axes[axis.var] for axis in entry.axes))
    s.tensorize(axes[entry.axes[0].var], entry.name)
    target = replace(CPU, offers=(entry.full_name(way),))
    return lower(s.program, target).kernels[0]


def operand_shapes(entry: Intrinsic) -> list[tuple[int, int]]:
    """The shapes of what `tile_kernel` multiplies: rows and steps, steps and columns."""
    (rows, deep), (steps, wide) = (tensor.shape for tensor in entry.op.inputs)
    first, second = _items(entry)
    return [(rows * first, deep), (steps, wide * second)]


def _items(entry: Intrinsic) -> tuple[int, int]:
    """Items that have rows of their own, and columns."""
    return (entry.warp.first, entry.warp.second) if entry.warp else (1, 1)


def _bind_items(s: Schedule, entry: Intrinsic, name: str) -> None:
    """The results shared out to the items of a warp."""
    out = s.cache_write(name)
    rows, columns = (
        s.split(loop, [axis.extent]) for loop, axis in zip(s.loops(out), entry.op.axes, strict=True)
    )
    s.reorder(columns[0], rows[0], rows[1], columns[1])
    s.bind(rows[0], "local.0")
    s.bind(columns[0], "local.1")
    s.compute_at(name, rows[0])
    s.unroll(rows[1])
    s.vectorize(columns[1])
