"""Chains of layers in one nest: what a tile that stays in the cache would gain a network.

    python -m benchmarks.chains 16,112,96,24,2 24,56,144,24,1 32,28,192,32,1

A block is C,SIZE,EXPANDED,MADE,STRIDE: a 1x1 convolution to EXPANDED channels, a depthwise 3x3 one
and a 1x1 one to MADE channels, the first two rectified, the second padded. Its default kernels run
in turns with one kernel whose work-groups take some rows of the result: they expand the rows
that these need, halo included, into an array of their own, go over them depthwise into another, and
project that. Another way joins the first two alone, as where what comes between the last two needs
all pixels (squeeze and excitation). Schedules are written by hand here, from the primitives that
rules use, for vectors of 8 and of 16 elements. A kernel is timed in the second of two runs: what
it reads lies in the last cache then if it fits there, as in a network, whose layers use the same
memory again. Prints the least microseconds of each kernel of many such runs, and the blocks' sums:
of three kernels each, and of each block's fastest way. Start it with POCL_CPU_MAX_CU_COUNT=1 under
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
from retune.graph.graph import Graph
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

BLOCKS = ("16,112,96,24,2", "24,56,144,24,1", "24,56,144,32,2", "32,28,192,32,1", "64,14,384,64,1")
_ROWS = (2, 3, 4, 7, 9, 13)
"""Rows of the result that a work-group takes."""
_POINTWISE = {8: ((6, 2), (4, 3), (12, 1)), 16: ((4, 6), (6, 3), (12, 2))}
"""By the elements of a vector: columns and vectors of channels of a register tile; 12 accumulators,
or 24, 18 and 24."""
_WINDOW = {8: (4, 2), 16: (5, 1)}


@dataclass(frozen=True, slots=True)
class Part:
    """Some layers as one task."""

    task: Task
    reads: Sequence[str]
    """The block's names of what it reads."""
    makes: str
    """That of what it writes."""


@dataclass(frozen=True, slots=True)
class Block:
    """The layers apart, the first two as one, and all three; with constants and random data."""

    layers: Sequence[Part]
    pair: Part
    whole: Part
    values: Mapping[str, np.ndarray]


Way = Sequence[tuple[Part, ProgramSource]]
"""What computes a block, in order."""


def block_of(text: str, folder: Path) -> Block:
    """The block that a text describes."""
    depth, size, expanded, made, stride = map(int, text.split(","))
    net = NetWriter("block", seed=0)
    x = net.conv_relu(net.input("data", (1, depth, size, size)), expanded, 1)
    x = net.conv_relu(x, expanded, 3, groups=expanded, stride=stride, pad=1)
    net.output(net.conv(x, made, 1, bias=True), "out")
    onnx.save(net.model(), folder / "block.onnx")
    network = import_network(str(folder / "block.onnx"), {}, "NHWC", folder).network
    groups = [placed.group for placed in network.groups if "conv2d" in placed.group.kind]
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, size, size, depth)).astype(np.float32)
    values = {**network.graph.constants, groups[0].inputs[0]: data}
    layers = [_part(network.graph, [group]) for group in groups]
    return Block(layers, _part(network.graph, groups[:2]), _part(network.graph, groups), values)


def _part(graph: Graph, groups: Sequence[Group]) -> Part:
    """The groups of a chain as one."""
    joined = Group(
        name="chain_0",
        kind=groups[0].kind,
        nodes=tuple(node for group in groups for node in group.nodes),
        inputs=groups[0].inputs,
        params=tuple(value for group in groups for value in group.params),
        outputs=groups[-1].outputs,
    )
    return Part(make_task(graph, joined), (*joined.inputs, *joined.params), joined.outputs[0])


def in_one_nest(task: Task, rows: int, lanes: int) -> Schedule:
    """Bands of the result's rows over work-groups, each with its part of the activations before."""
    s = Schedule(from_dag(task.dag))
    inline_elementwise(s)
    sums = [name for name in s.blocks() if s.block(name).reducer is not None]
    made = [name for name in s.blocks() if s.block(name).reducer is None]
    band, _ = s.split(s.loops(made[-1])[-3], [rows], "shift")
    s.bind(band, "group.0")
    tile = (_pointwise, _depthwise, _pointwise)
    for number in reversed(range(len(sums))):
        tile[number](s, sums[number], made[number], lanes)
        if number:
            s.compute_at(made[number - 1], band, "private")
    return s


def _pointwise(s: Schedule, name: str, out: str, lanes: int) -> None:
    """The 1x1 convolution on register tiles of what follows it, of the largest that divide it."""
    row, column, channel = s.loops(out)[-3:]
    vectors = s.extent(channel) // lanes
    columns, made = next(t for t in _POINTWISE[lanes] if vectors % t[1] == 0)
    far, near = s.split(column, [columns], "shift")
    part, vector, lane = s.split(channel, [made, lanes])
    s.reorder(row, far, part, near, vector, lane)
    s.compute_at(name, part)
    order_reduction(s, name, RegisterTile(lanes), sampled=False)
    s.vectorize(lane)
    unroll_all(s, [near, vector])
    pack_operands(s, name)


def _depthwise(s: Schedule, name: str, out: str, lanes: int) -> None:
    """The window on tiles of a row, as `targets.cpu.windows` tiles it."""
    columns, made = _WINDOW[lanes]
    row, column, channel = s.loops(out)[-3:]
    far, near = s.split(column, [columns], "shift")
    part, vector, lane = s.split(channel, [made, lanes])
    s.reorder(part, row, far, near, vector, lane)
    s.compute_at(name, far)
    write_out(s, name, lanes)
    s.vectorize(lane)
    unroll_all(s, [near, vector])
    pack_operands(s, name)


def ways_of(block: Block, device: Device) -> Iterator[tuple[str, Way]]:
    """The default kernels, and those that join layers, of each number of rows."""
    target, lanes = target_of(device.spec), max(n for n in _WINDOW if n <= device.spec.lanes_f32)
    spaces = [part.task.space(device.spec) for part in block.layers]
    chosen = [space.instantiate(default_candidate(space, device.spec)) for space in spaces]
    apart = [lower(program, target) for program in chosen]
    yield "three nests", list(zip(block.layers, apart, strict=True))
    for rows in _ROWS:
        try:
            pair = lower(in_one_nest(block.pair.task, rows, lanes).program, target)
            whole = lower(in_one_nest(block.whole.task, rows, lanes).program, target)
        except ScheduleError:
            continue  # the block has fewer rows
        yield f"two, {rows} rows", [(block.pair, pair), (block.layers[2], apart[2])]
        yield f"one nest, {rows} rows", [(block.whole, whole)]


def computed(block: Block, way: Way, device: Device) -> np.ndarray:
    """The block's result."""
    made = dict(block.values)
    for part, source in way:
        arrays = {n: made[v] for n, v in zip(part.task.inputs, part.reads, strict=True)}
        (made[part.makes],) = execute(source, arrays, device).values()
    return made[block.whole.makes]


def deviation(found: Sequence[np.ndarray]) -> float:
    """The largest difference of any from the first, as a part of its largest value."""
    return max(float(np.abs(f - found[0]).max() / np.abs(found[0]).max()) for f in found)


def launches_of(way: Way, device: Device) -> list[PreparedKernel]:
    """The kernels one after the other, each on what the one before it has written."""
    found: list[PreparedKernel] = []
    passed: DeviceMemory | None = None
    for _, source in way:
        program = device.build(*(k.text for k in source.kernels), options=source.options)
        buffers = {b.name: device.random(b.dtype, b.elements) for b in source.buffers}
        if passed is not None:
            buffers[next(b.name for b in source.buffers if b.role == "input")] = passed
        found += device.prepare_all(program, source.launches, buffers)
        passed = next(buffers[b.name] for b in source.buffers if b.role == "output")
    return found


def report(text: str, device: Device, runs: int) -> tuple[float, float]:
    """A line for each way of running the block; microseconds of three kernels, and the least."""
    with TemporaryDirectory() as folder:
        block = block_of(text, Path(folder))
    ways = dict(ways_of(block, device))
    made = [computed(block, way, device) for way in ways.values()]
    print(f"{text}: deviation {deviation(made):.1e}")
    launches = {name: launches_of(way, device) for name, way in ways.items()}
    least: dict[str, np.ndarray] = {}
    for _ in range(runs):
        for name, own in launches.items():
            device.profile(own)
            times = 1e6 * np.array(device.profile(own))
            least[name] = np.minimum(least.get(name, np.inf), times)
    base = least["three nests"].sum()
    for name, us in least.items():
        parts = " + ".join(f"{each:.0f}" for each in us)
        print(f"  {name:16} {us.sum():6.0f} us ({us.sum() / base:.2f}x)  {parts}", flush=True)
    return float(base), float(min(us.sum() for us in least.values()))


def main() -> None:
    """Measures the blocks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("blocks", nargs="*", default=list(BLOCKS), metavar="BLOCK")
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    device = open_device("pocl")
    found = [report(text, device, options.runs) for text in options.blocks]
    apart, joined = map(sum, zip(*found, strict=True))
    print(f"all blocks: {apart:.0f} us in three kernels each, {joined:.0f} us the fastest way")


if __name__ == "__main__":
    main()
