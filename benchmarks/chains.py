"""Chains of layers in one nest: what a tile that stays in the cache would gain a network.

    python -m benchmarks.chains 16,112,96,32,2 24,56,144,32,1 32,28,192,32,1

A block is C,SIZE,EXPANDED,MADE,STRIDE: a 1x1 convolution to EXPANDED channels, a depthwise 3x3 one
and a 1x1 one to MADE channels, the first two rectified, without padding. Its three default kernels
run in turns with one kernel whose work-groups take some rows of the result: they expand the rows
that these need, halo included, into an array of their own, go over them depthwise into another, and
project that. Its schedule is written by hand here, from the primitives that rules use. Prints the
least microseconds of each kernel of many runs. Start it with POCL_CPU_MAX_CU_COUNT=1 under
`taskset` where other programs use the processor: a work-group needs one core.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from benchmarks.command import parser_of
from retune.api import import_network
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import ScheduleError
from retune.device.opencl.execute import execute
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel, open_device
from retune.frontend.zoo.writer import NetWriter
from retune.graph.fuse import Group
from retune.ir.stmt import from_dag
from retune.schedule.schedule import Schedule
from retune.search.extract import make_task
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.tile import RegisterTile, order_reduction
from retune.targets.cpu.windows import write_out
from retune.targets.devices import target_of
from retune.targets.fusion import inline_elementwise, pack_operands
from retune.targets.tiling import unroll_all

BLOCKS = ("16,112,96,32,2", "24,56,144,32,1", "24,56,144,32,2", "32,28,192,32,1", "64,14,384,64,1")
_LANES = 16
_ROWS = (4, 7, 9, 13)
"""Rows of the result that a work-group takes."""
_POINTWISE = ((4, 6), (6, 3), (12, 2))
"""Columns and vectors of channels of a register tile: 24, 18 and 24 accumulators."""
_WINDOW = (5, 1)


@dataclass(frozen=True, slots=True)
class Block:
    """The layers apart and as one task, with constants and random data."""

    layers: Sequence[tuple[Task, Sequence[str]]]
    """The task of each, and the network's names of what it reads."""
    whole: Task
    reads: Sequence[str]
    values: Mapping[str, np.ndarray]


def block_of(text: str, folder: Path) -> Block:
    """The block that a text describes."""
    depth, size, expanded, made, stride = map(int, text.split(","))
    net = NetWriter("block", seed=0)
    x = net.conv_relu(net.input("data", (1, depth, size, size)), expanded, 1)
    x = net.conv_relu(x, expanded, 3, groups=expanded, stride=stride)
    net.output(net.conv(x, made, 1, bias=True), "out")
    onnx.save(net.model(), folder / "block.onnx")
    network = import_network(str(folder / "block.onnx"), {}, "NHWC", folder).network
    groups = [placed for placed in network.groups if "conv2d" in placed.group.kind]
    layers = [(network.task_of(p), (*p.group.inputs, *p.group.params)) for p in groups]
    joined = _joined([placed.group for placed in groups])
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, size, size, depth)).astype(np.float32)
    values = {**network.graph.constants, joined.inputs[0]: data}
    reads = (*joined.inputs, *joined.params)
    return Block(layers, make_task(network.graph, joined), reads, values)


def _joined(groups: Sequence[Group]) -> Group:
    """The groups of a chain as one."""
    return Group(
        name="chain_0",
        kind=groups[0].kind,
        nodes=tuple(node for group in groups for node in group.nodes),
        inputs=groups[0].inputs,
        params=tuple(value for group in groups for value in group.params),
        outputs=groups[-1].outputs,
    )


def in_one_nest(task: Task, rows: int, window: tuple[int, int]) -> Schedule:
    """Bands of the result's rows over work-groups, each with its part of both activations."""
    s = Schedule(from_dag(task.dag))
    inline_elementwise(s)
    expand, depthwise, project = (n for n in s.blocks() if s.block(n).reducer is not None)
    first, second, out = (n for n in s.blocks() if s.block(n).reducer is None)
    band, _ = s.split(s.loops(out)[-3], [rows], "shift")
    s.bind(band, "group.0")
    _pointwise(s, project, out)
    s.compute_at(second, band, "private")
    _depthwise(s, depthwise, second, window)
    s.compute_at(first, band, "private")
    _pointwise(s, expand, first)
    return s


def _pointwise(s: Schedule, name: str, out: str) -> None:
    """The 1x1 convolution on register tiles of what follows it, of the largest that divide it."""
    row, column, channel = s.loops(out)[-3:]
    vectors = s.extent(channel) // _LANES
    columns, made = next(t for t in _POINTWISE if vectors % t[1] == 0)
    far, near = s.split(column, [columns], "shift")
    part, vector, lane = s.split(channel, [made, _LANES])
    s.reorder(row, far, part, near, vector, lane)
    s.compute_at(name, part)
    order_reduction(s, name, RegisterTile(_LANES), sampled=False)
    s.vectorize(lane)
    unroll_all(s, [near, vector])
    pack_operands(s, name)


def _depthwise(s: Schedule, name: str, out: str, tile: tuple[int, int]) -> None:
    """The window on tiles of a row, as `targets.cpu.windows` tiles it."""
    columns, made = tile
    row, column, channel = s.loops(out)[-3:]
    far, near = s.split(column, [columns], "shift")
    part, vector, lane = s.split(channel, [made, _LANES])
    s.reorder(part, row, far, near, vector, lane)
    s.compute_at(name, far)
    write_out(s, name, _LANES)
    s.vectorize(lane)
    unroll_all(s, [near, vector])
    pack_operands(s, name)


def sources_of(block: Block, device: Device) -> Iterator[tuple[str, Sequence[ProgramSource]]]:
    """The default kernels, and those in one nest of each number of rows."""
    target = target_of(device.spec)
    spaces = [(task.space(device.spec), task) for task, _ in block.layers]
    defaults = [s.instantiate(default_candidate(s, device.spec)) for s, _ in spaces]
    yield "three nests", [lower(program, target) for program in defaults]
    for rows in _ROWS:
        try:
            program = in_one_nest(block.whole, rows, _WINDOW).program
        except ScheduleError:
            continue  # the block has fewer rows
        yield f"one nest, {rows} rows", [lower(program, target)]


def deviation(block: Block, sources: Sequence[Sequence[ProgramSource]], device: Device) -> float:
    """The largest difference of one nest from the three, as a part of the largest value."""
    made, value = dict(block.values), np.empty(0)
    for (task, reads), source in zip(block.layers, sources[0], strict=True):
        arrays = {name: made[v] for name, v in zip(task.inputs, reads, strict=True)}
        (value,) = execute(source, arrays, device).values()
        made.update((v, value) for v in _next(block, reads))
    arrays = {n: block.values[v] for n, v in zip(block.whole.inputs, block.reads, strict=True)}
    found = [next(iter(execute(s, arrays, device).values())) for (s,) in sources[1:]]
    return max(float(np.abs(f - value).max() / np.abs(value).max()) for f in found)


def _next(block: Block, reads: Sequence[str]) -> Sequence[str]:
    """The first of what the layer after the one that reads these reads; none after the last."""
    every = [own for _, own in block.layers]
    return [own[0] for own in every[every.index(reads) + 1 :][:1]]


def launches_of(sources: Sequence[ProgramSource], device: Device) -> list[PreparedKernel]:
    """The kernels one after the other, each on what the one before it has written."""
    found: list[PreparedKernel] = []
    passed: DeviceMemory | None = None
    for source in sources:
        program = device.build(*(k.text for k in source.kernels), options=source.options)
        buffers = {b.name: device.random(b.dtype, b.elements) for b in source.buffers}
        if passed is not None:
            buffers[next(b.name for b in source.buffers if b.role == "input")] = passed
        found += device.prepare_all(program, source.launches, buffers)
        passed = next(buffers[b.name] for b in source.buffers if b.role == "output")
    return found


def report(text: str, device: Device, runs: int) -> None:
    """Prints a line for each way of running the block."""
    with TemporaryDirectory() as folder:
        block = block_of(text, Path(folder))
    ways = dict(sources_of(block, device))
    print(f"{text}: deviation {deviation(block, list(ways.values()), device):.1e}")
    launches = {name: launches_of(sources, device) for name, sources in ways.items()}
    least: dict[str, np.ndarray] = {}
    for _ in range(runs):
        for name, own in launches.items():
            times = 1e6 * np.array(device.profile(own))
            least[name] = np.minimum(least.get(name, np.inf), times)
    base = least["three nests"].sum()
    for name, us in least.items():
        parts = " + ".join(f"{each:.0f}" for each in us)
        print(f"  {name:16} {us.sum():6.0f} us ({us.sum() / base:.2f}x)  {parts}", flush=True)


def main() -> None:
    """Measures the blocks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("blocks", nargs="*", default=list(BLOCKS), metavar="BLOCK")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    device = open_device("pocl")
    for text in options.blocks:
        report(text, device, options.runs)


if __name__ == "__main__":
    main()
