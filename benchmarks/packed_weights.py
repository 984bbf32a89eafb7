"""Products with weights of 4 and 8 bits (MatMulNBits): our time for a run against onnxruntime's.

    python -m benchmarks.packed_weights
    python -m benchmarks.packed_weights --bits 4 --rows 1 --size 2048x2048 --size 576x49152

Products of float32 rows with weights that are quantized in blocks of 32. For one row there are
several in one network: as many as come to 40 MB, and 64 at most. Default schedules, single calls in
turns, of which the least time counts: other work on the machine lengthens the others. Ratios below
1 are faster. With `accuracy_level` 4 (`int8`), which the GenAI builder writes, both round rows to
int8. For one row the last figure is the share of the rate at which a kernel that does nothing else
reads as many bytes, measured in the same turns: bytes of weights are those of the file, quantized
values, scales, and no zero points.
"""

import os
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.core.dtypes import FLOAT32
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import Device, open_device

BLOCK = 32
LEVELS = {"float": 0, "int8": 4}
"""What a product may be computed in, as `accuracy_level` numbers it."""
SIZES = (
    *("576x1536", "576x576", "576x192", "1536x576", "576x49152"),
    *("2048x5632", "2048x2048", "2048x256", "5632x2048"),
)
"""Inputs and outputs of the products of SmolLM2-135M, and of a decoder of 1.1 billion weights."""
_BYTES, _MOST = 40 << 20, 64
"""Of all weights, and how many there are: more than the caches hold where that is possible."""
_TOLERANCE = 1e-2
"""Of the range: rows are rounded to int8 where they may be."""
_SHORT = BenchOptions(settle_s=0.002, min_sample_s=0.0, max_rounds=4000, precision=0.0)
"""Single calls, as many as there is time for."""
_READERS = 4
"""Work-groups for each core, and vectors that each of them reads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The products of a network, of one size."""

    inputs: int
    outputs: int
    bits: int
    level: int
    rows: int

    @property
    def bytes(self) -> int:
        """Of one weight, with its scales."""
        return self.inputs * self.outputs * self.bits // 8 + self.inputs // BLOCK * self.outputs * 4

    @property
    def copies(self) -> int:
        """How many there are: caches would hold one."""
        return max(1, min(_MOST, _BYTES // self.bytes)) if self.rows == 1 else 1

    def model(self) -> onnx.ModelProto:
        """Products with random quantized weights."""
        rng, blocks = np.random.default_rng(0), self.inputs // BLOCK
        nodes: list[onnx.NodeProto] = []
        stored: list[onnx.TensorProto] = []
        for n in range(self.copies):
            arrays = {
                f"b{n}": rng.integers(
                    0, 256, (self.outputs, blocks, BLOCK * self.bits // 8), np.uint8
                ),
                f"s{n}": rng.uniform(0.01, 0.02, self.outputs * blocks).astype(np.float32),
            }
            stored += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
            nodes.append(
                helper.make_node(
                    "MatMulNBits", ["x", *arrays], [f"y{n}"], domain="com.microsoft",
                    K=self.inputs, N=self.outputs, bits=self.bits, block_size=BLOCK,
                    accuracy_level=self.level,
                )
            )  # fmt: skip
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [self.rows, self.inputs])
        made = [
            helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [self.rows, self.outputs])
            for n in range(self.copies)
        ]
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        graph = helper.make_graph(nodes, "packed", [given], made, stored)
        return helper.make_model(graph, opset_imports=domains, ir_version=8)


class Reader:
    """A kernel that reads so many bytes and does nothing else."""

    def __init__(self, device: Device, size: int) -> None:
        groups = _READERS * device.spec.compute_units
        steps = size // (64 * _READERS * groups)
        sums = [f"s{i}" for i in range(_READERS)]
        text = "\n".join(
            [
                "__kernel void stream(__global const float* x, __global float* y) {",
                f"  x += get_group_id(0)*{steps * 16 * _READERS};",
                f"  float16 {', '.join(f'{s} = (float16)(0.0f)' for s in sums)};",
                f"  for (int i = 0; i < {steps}; ++i, x += {16 * _READERS}) {{",
                *(f"    {s} += vload16({i}, x);" for i, s in enumerate(sums)),
                "  }",
                f"  vstore16({' + '.join(sums)}, get_group_id(0), y);",
                "}",
            ]
        )
        self.bytes = steps * 64 * _READERS * groups
        buffers = [device.random(FLOAT32, self.bytes // 4), device.random(FLOAT32, 16 * groups)]
        sides = (groups, 1, 1), (1, 1, 1)
        self._launch = device.prepare(device.build(text), "stream", buffers, *sides)
        self._device = device

    def __call__(self) -> None:
        """All of it, once."""
        self._device.time([self._launch])


def compare(layer: Layer, path: Path, seconds: float) -> tuple[str, float]:
    """Our time, onnxruntime's and their ratio; for one row the share of the rate of reading."""
    device, shape = open_device("pocl"), (layer.rows, layer.inputs)
    onnx.save(layer.model(), path)
    plan = build_plan(import_network(str(path)).network, {}, device.spec, model_key="", notes={})
    data = {"x": np.random.default_rng(1).random(shape, np.float32)}
    peer = open_peer("onnxruntime", path)
    with lease(device.spec):
        module = Module(best_form(plan, device), device)
        found, wanted = (call(data)["y0"] for call in (module.run, peer))
        np.testing.assert_allclose(found, wanted, atol=_TOLERANCE * np.ptp(wanted))
        calls = {"ours": lambda: module.run(data), "onnxruntime": lambda: peer(data)}
        if layer.rows == 1:
            calls |= {"reading": Reader(device, layer.bytes * layer.copies)}
        outcome = compare_times(calls, options=replace(_SHORT, budget_s=seconds))
    ours, theirs, *reading = (1e3 * min(timing.times_s) for timing in outcome.timings)
    text = f"{layer.rows:4} rows {ours:7.3f} / {theirs:7.3f} ms = {ours / theirs:4.2f}"
    if reading:
        rate = layer.bytes * layer.copies / ours / 1e6
        text += f" ({rate:.1f} GB/s, {reading[0] / ours:.0%} of reading)"
    return text, ours / theirs


def main() -> None:
    """Prints a line for each size, number of bits and type that products are computed in."""
    parser = parser_of(__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128, 512])
    parser.add_argument("--size", nargs="+", default=SIZES, help="INPUTSxOUTPUTS")
    parser.add_argument("--type", choices=LEVELS, nargs="+", default=["float", "int8"])
    parser.add_argument("--seconds", type=float, default=2, help="Time for each number of rows.")
    given = parser.parse_args()
    ratios: dict[int, list[float]] = {rows: [] for rows in given.rows}
    with TemporaryDirectory() as folder:
        for bits, kind, size in product(given.bits, given.type, given.size):
            inputs, outputs = map(int, size.split("x"))
            cells: list[str] = []
            for rows in given.rows:
                layer = Layer(
                    inputs=inputs, outputs=outputs, bits=bits, level=LEVELS[kind], rows=rows
                )
                text, ratio = compare(layer, Path(folder) / "packed.onnx", given.seconds)
                cells.append(text)
                ratios[rows].append(ratio)
            load = os.getloadavg()[0]
            print(f"{bits} bits {size}, {kind}: {'   '.join(cells)}, load {load:.1f}", flush=True)
    for rows, found in ratios.items():
        print(f"{rows} rows: geometric mean {geometric_mean(found):.2f}, worst {max(found):.2f}")


if __name__ == "__main__":
    main()
