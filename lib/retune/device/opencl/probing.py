"""What a device offers beside OpenCL's own: implementations of intrinsics, launches from one
address, and groups that may stay.

Each is built there, run, and compared.

No name and no version is asked. A process of its own does it, as an instruction that is not there
may end it; what it found is kept for the machine, by the device and by the texts that were tried.
Read `offered`, and `probe_of` for the kernel that tries an implementation.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.codegen.kernel import ROUNDED_LANES, Function
from retune.codegen.lower import lower
from retune.codegen.network.resident import WAYS
from retune.codegen.opencl.intrinsics import LANGUAGE, function_lines, function_name
from retune.codegen.opencl.prelude import (
    ARRIVED,
    COMMIT,
    COPY,
    COPY_LINES,
    rounding_instruction_lines,
    storer,
)
from retune.codegen.source import Run
from retune.codegen.target import CPU, GPU, ONE_BASE
from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, TF32, DType, TensorType
from retune.core.keys import content_key
from retune.core.target import COPY_AHEAD, DECLARED_LOCAL, DeviceSpec, converting
from retune.device.opencl.remembered import kept
from retune.intrinsics import Implementation, Intrinsic, Signature, intrinsics
from retune.intrinsics.attention import MMA
from retune.ir.expr import Expr, Load, Var, const, redirect
from retune.ir.stmt import from_dag
from retune.ir.te import Axis, Compute, Dag, Tensor, placeholder, reduce_axis, stored
from retune.ops.registry import Names, OpCall, expression_of
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


COPY_PROGRAM = "\n".join(
    [
        *COPY_LINES,
        "__kernel __attribute__((reqd_work_group_size(64, 1, 1)))",
        "void probe(__global const int* x, __global int* y)",
        "{",
        "  __local int held[2][256] __attribute__((aligned(64)));",
        "  const int i = get_local_id(0);",
        "  for (int n = 0; n < 2; ++n) {",
        f"    {COPY}_16(held[n] + 4 * i, x + 256 * n + 4 * i, i % 2 ? 16 : 0);",
        f"    {COMMIT}();",
        "  }",
        "  for (int n = 0; n < 2; ++n) {",
        f"    if (n == 0) {ARRIVED}(1);",
        f"    else {ARRIVED}(0);",
        "    barrier(CLK_LOCAL_MEM_FENCE);",
        "    for (int k = 0; k < 4; ++k)",
        "      y[256 * n + 64 * k + i] = held[n][64 * k + 63 - i];",
        "  }",
        "}",
        "",
    ]
)
"""Two batches of copies by the items of a group, every second one of zeros; others store them."""


def local_program(size: int) -> str:
    """A group of 64 items fills so many bytes of local memory, and stores what others wrote."""
    return f"""
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void probe(__global const int* x, __global int* y)
{{
  __local int held[{size // 4}];
  const int i = get_local_id(0);
  for (int n = i; n < {size // 4}; n += 64)
    held[n] = x[0] * n;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int n = i; n < {size // 4}; n += 64)
    y[n] = held[{size // 4 - 1} - n];
}}
"""


def rounding_program() -> str:
    """Conversions to bfloat16 by an instruction, in vectors of each length."""
    kind, lengths = BFLOAT16, ROUNDED_LANES[BFLOAT16]
    lines = [line for n in lengths for line in rounding_instruction_lines(kind, n)]
    calls = [
        f"  vstore{n}({storer(kind, n)}(vload{n}(i, x)), i, y + {ROUNDED} * {part});"
        for part, n in enumerate(lengths)
    ]
    head = "__kernel void probe(__global const float* x, __global ushort* y)"
    loops = [f"  for (int i = 0; i < {ROUNDED // n}; ++i)" for n in lengths]
    body = [line for pair in zip(loops, calls, strict=True) for line in pair]
    return "\n".join([*lines, head, "{", *body, "}", ""])


ROUNDED = 256
"""Floats that are rounded by each."""

_LOG = logging.getLogger(__name__)
_DEADLINE_S = 120.0
_VERSION = 3
"""Of the kernels that try implementations: what an earlier version found is probed again."""
_ROWS, _STEPS = 64, 2
"""Sums in each vector lane that a probe makes, and calls for each of them."""
_BOOT = (
    "import json, sys; from importlib import import_module; sys.path[:] = json.loads(sys.argv[1]); "
    "[import_module(name) for name in json.loads(sys.argv[2])]; "
    "from retune.device.opencl.probe_child import main; main(sys.argv[3], json.loads(sys.argv[4]))"
)


def offered(spec: DeviceSpec) -> tuple[str, ...]:
    """The implementations that the device has, by their full names, the best of each intrinsic
    first; then `ONE_BASE`, where kernels reach all memory from one address, and of `resident.WAYS`
    those by which groups may stay for a whole run; `COPY_AHEAD`, attention as one kernel, and
    sizes of local memory.

    Probes it if this machine has not done so yet, which takes a second or two.
    """
    names = [*(name for name, _, _ in implementations()), ONE_BASE]
    # On processors `persistent` does what `WAYS` do for groups of one item; GPUs need no probe.
    own = (
        [converting(BFLOAT16)]
        if spec.device_class == "cpu"
        else [*WAYS, COPY_AHEAD, MMA, *DECLARED_LOCAL]
    )
    names += own
    identity = spec.fingerprint, spec.host
    known = kept("instructions", lambda: _probe(spec.name, names), *identity, state=_texts())
    return tuple(name for name in names if name in known)


def implementations() -> Iterator[tuple[str, Intrinsic, Implementation]]:
    """All but those that need no probe, with their full names."""
    for entry in intrinsics():
        for one in entry.implementations[:-1]:
            if LANGUAGE in one.text:
                yield entry.full_name(one), entry, one


def _texts() -> str:
    """A digest of all that is tried."""
    tried = [
        ([*function_lines(Function(e.name, s, x.name) for s in e.signatures(x))], x.options)
        for _, e, x in implementations()
    ]
    ways = (way.text for way in WAYS.values())
    whole = (run.run[0].text for run in attention_probes())
    return content_key(
        *(_VERSION, *tried, BASED_PROGRAM, rounding_program(), COPY_PROGRAM, *ways, *whole),
        *map(local_program, DECLARED_LOCAL.values()),
    )


def _probe(device: str, names: Sequence[str]) -> list[str]:
    """Those that work. One that ends the process, or hangs, does not."""
    modules = json.dumps(sorted({one.text[LANGUAGE].__module__ for _, _, one in implementations()}))
    left, found = list(names), list[str]()
    while left:
        arguments = [json.dumps(sys.path), modules, device, json.dumps(left)]
        try:
            done = subprocess.run(
                [sys.executable, "-c", _BOOT, *arguments],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_S,
                check=False,
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


@dataclass(frozen=True, slots=True)
class Probe:
    """What an implementation is tried with."""

    dag: Dag
    """What its kernel computes, of operands `a` and `b`."""
    run: Run


def probe_of(entry: Intrinsic, implementation: Implementation, signature: Signature) -> Probe:
    """A kernel of the pattern alone, on operands of these types: sums in vector lanes, one tile, or
    that of a whole warp."""
    dag = _sums(entry, signature)
    (made,) = dag.outputs
    s = Schedule(from_dag(dag, f"probe_{function_name(entry.name, signature)}"))
    if entry.residence == "vector lane":
        s.tensorize(_in_lanes(s, made.name), entry.name)
    else:
        if entry.warp is not None:
            _bind_items(s, entry, made.name)
        own = [axis.var for axis in (*entry.op.axes, *entry.op.reduce_axes)]
        loops = dict(zip(own, s.loops(made.name)[-len(own) :], strict=True))
        s.reorder(*(loops[axis.var] for axis in entry.axes))
        s.tensorize(loops[entry.axes[0].var], entry.name)
    target = replace(CPU, offers=(entry.full_name(implementation),))
    return Probe(dag, lower(s.program, target).runs[0])


def attention_probes() -> Iterator[Probe]:
    """Kernels of attention: with a part of a tile, of a step and of a pair of steps, with keys that
    are hidden, and with warps that share rows."""
    for dtype, tile in _ATTENDING.items():
        dag = _attention(dtype)
        (made,) = dag.outputs
        s = Schedule(from_dag(dag, f"probe_attention_{dtype}"))
        s.restate(made.name, "attention", tile)
        for number, loop in enumerate(s.loops(made.name)[:2]):
            s.bind(loop, f"group.{number}")
        target = replace(GPU, offers=(MMA,))
        yield Probe(dag, lower(s.program, target).runs[0])


_ROWS_OF = {"q": 70, "k": 150, "v": 150}
_ATTENDING: Mapping[DType, tuple[int, ...]] = {
    FLOAT16: (2, 1, 2, 32, 2),
    BFLOAT16: (2, 2, 1, 64, 2),
    FLOAT32: (2, 2, 2, 16, 2),
}
"""Type of the operands, float32 for TF32 -> a tile."""


def _attention(dtype: DType) -> Dag:
    """Attention of two heads: 70 queries and 150 keys of 64 elements, of which queries see some."""
    q, k, v = (placeholder(n, (2, rows, 64), dtype) for n, rows in _ROWS_OF.items())
    call = OpCall(
        op="attention",
        inputs=(q, k, v),
        attrs={"scale": 0.25, "causal": 60} | ({"operands": TF32} if dtype is FLOAT32 else {}),
        output=TensorType((2, 70, 64), FLOAT32),
        name=Names(),
    )
    return Dag((stored(expression_of("attention")(call), dtype),))


def _sums(entry: Intrinsic, signature: Signature) -> Dag:
    """The pattern on operands of these types, for all items of a warp, or for rows of lanes."""
    op, outer, steps = entry.op, tuple[Axis, ...](), tuple[Axis, ...]()
    items = (entry.warp.first, entry.warp.second) if entry.warp else (1, 1)
    axes = tuple(Axis(x.var, x.extent * n) for x, n in zip(op.axes, items, strict=False))
    shapes = [
        tuple(extent * (n if dim == number else 1) for dim, extent in enumerate(tensor.shape))
        for number, (tensor, n) in enumerate(zip(op.inputs, items, strict=True))
    ]
    if entry.residence == "vector lane":
        axes = outer = (Axis(Var("i"), _ROWS), Axis(Var("l"), signature.lanes))
        count = 1 if entry.most else _STEPS  # of any bytes, more may not fit a lane's parts
        steps = (reduce_axis("t", count),)
        shapes = [(_ROWS, count, signature.lanes, entry.k)] * 2
    inputs = {
        tensor.name: placeholder(tensor.name, shape, dtype)
        for tensor, shape, dtype in zip(op.inputs, shapes, signature.dtypes, strict=True)
    }

    def read(load: Load) -> Expr:
        at = (outer[0].var, steps[0].var, outer[1].var, *load.indices) if outer else load.indices
        return Load(inputs[load.buffer.name].buffer, at)

    made = Compute(
        axes, (*steps, *op.reduce_axes), redirect(op.body, read), op.reducer, (*inputs.values(),)
    )
    shape = tuple(const(axis.extent) for axis in axes)
    return Dag((Tensor(replace(entry.pattern.buffer, shape=shape), made),))


def _in_lanes(s: Schedule, name: str) -> str:
    """A group for each row, its sums in registers; gives the loop that the instruction replaces."""
    row, lane = s.loops(s.cache_write(name))
    s.compute_at(name, row)
    s.bind(row, "group.0")
    own, step, near = s.loops(name)[-3:]
    s.reorder(step, own, near)
    if s.loop(lane).extent != const(1):
        s.vectorize(lane)
        s.vectorize(own)
    return near


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
    if entry.reads_locally:
        steps = s.reduce_loops(name)[0]
        around, *_ = s.split(steps, [s.loop(steps).extent])
        s.reorder(around, *(loop for loop in s.loops(name)[-5:] if loop != around))
        for operand in entry.operands:
            s.cache_read(operand.name, around, "local")
