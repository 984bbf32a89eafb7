"""Single operators, common and uncommon: our time for a call against onnxruntime's, interleaved.

    python -m benchmarks.operators
    python -m benchmarks.operators conv TopK --seconds 5

Each is a network of its own with default schedules, in shapes of real networks. The first time is
that of a whole call, which copies small inputs and outputs, and turns those of most convolutions
into NHWC and back, as a network would once; the second is that of the kernels alone.
What stands out is worth a look at its kernels (`steps`, `kernels`). Ratios below 1 are faster.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import Device, open_device

_OPSET = 17
_TOLERANCE = 1e-3
"""Of the range of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node of random weights."""

    op: str
    inputs: Sequence[tuple[int, ...]]
    weights: Sequence[tuple[int, ...]] = ()
    constants: Sequence[np.ndarray] = ()
    """Further inputs, behind the weights."""
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    kinds: Sequence[int] = ()
    """Types of the inputs; floats where there is none."""

    @property
    def types(self) -> Sequence[int]:
        """One for each input."""
        return [*self.kinds, *[TensorProto.FLOAT] * (len(self.inputs) - len(self.kinds))]

    def model(self) -> onnx.ModelProto:
        """The node by itself."""
        rng = np.random.default_rng(0)
        given = [f"x{n}" for n in range(len(self.inputs))]
        stored = {
            f"w{n}": (rng.standard_normal(shape) / 10).astype(np.float32)
            for n, shape in enumerate(self.weights)
        } | {f"c{n}": array for n, array in enumerate(self.constants)}
        made = [f"y{n}" for n in range(self.outputs)]
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node(self.op, [*given, *stored], made, **self.attrs)],
            "operator",
            [value(*one) for one in zip(given, self.types, self.inputs, strict=True)],
            [helper.make_empty_tensor_value_info(name) for name in made],
            [numpy_helper.from_array(array, name) for name, array in stored.items()],
        )
        domains = [helper.make_opsetid("", _OPSET)]
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=domains, ir_version=8), data_prop=True
        )
        kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.output}
        del graph.output[:]
        graph.output.extend(value(name, kinds[name], None) for name in made)
        return helper.make_model(graph, opset_imports=domains, ir_version=8)

    def data(self) -> dict[str, np.ndarray]:
        """Random inputs."""
        rng = np.random.default_rng(1)
        return {
            f"x{n}": rng.integers(0, 100, shape).astype(helper.tensor_dtype_to_np_dtype(kind))
            if kind != TensorProto.FLOAT
            else rng.random(shape, np.float32)
            for n, (shape, kind) in enumerate(zip(self.inputs, self.types, strict=True))
        }


def _conv(x: tuple[int, ...], w: tuple[int, ...], pad: int = 0, **attrs: Any) -> Operator:
    """A convolution with a bias, and as much padding on all sides."""
    attrs = {"pads": [pad] * 2 * (len(x) - 2), **attrs}
    return Operator(op="Conv", inputs=[x], weights=[w, w[:1]], attrs=attrs)


def _up(x: tuple[int, ...], w: tuple[int, ...], pad: int = 0, **attrs: Any) -> Operator:
    """A transposed one, the same way."""
    attrs = {"pads": [pad] * 2 * (len(x) - 2), **attrs}
    bias = (w[1] * attrs.get("group", 1),)
    return Operator(op="ConvTranspose", inputs=[x], weights=[w, bias], attrs=attrs)


def _one(op: str, *inputs: tuple[int, ...], **attrs: Any) -> Operator:
    return Operator(op=op, inputs=inputs, attrs=attrs)


def _with(op: str, x: tuple[int, ...], *constants: Any, outputs: int = 1, **attrs: Any) -> Operator:
    arrays = [np.asarray(c) for c in constants]
    return Operator(op=op, inputs=[x], constants=arrays, outputs=outputs, attrs=attrs)


def _twice(x: tuple[int, ...], **attrs: Any) -> Operator:
    """An image of twice the size."""
    scales = np.array([1, 1, 2, 2], np.float32)
    return _with("Resize", x, scales[:0], scales, **attrs)


def _normed(op: str, x: tuple[int, ...], channels: int, **attrs: Any) -> Operator:
    return Operator(op=op, inputs=[x], weights=[(channels,), (channels,)], attrs=attrs)


OPERATORS: Mapping[str, Operator] = {
    "conv 1d": _conv((1, 256, 400), (256, 256, 3), 1),
    "conv 1d dilated": _conv((1, 128, 1600), (128, 128, 7), 9, dilations=[3]),
    "conv 1d of a wave": _conv((1, 1, 16000), (512, 1, 10), strides=[5]),
    "conv 1d long": _conv((1, 64, 24000), (64, 64, 3), 1),
    "conv 1d depthwise": _conv((8, 512, 200), (512, 1, 5), 2, group=512),
    "conv 1d depthwise wide": _conv((1, 256, 300), (256, 1, 31), 15, group=256),
    "conv 3d": _conv((1, 32, 16, 28, 28), (32, 32, 3, 3, 3), 1),
    "conv 3d in time": _conv((1, 64, 8, 56, 56), (64, 64, 3, 1, 1), pads=[1, 0, 0, 1, 0, 0]),
    "conv 3d of colours": _conv((1, 3, 16, 112, 112), (24, 3, 3, 7, 7), 3, strides=[1, 2, 2]),
    "conv 3d depthwise": _conv((1, 54, 16, 56, 56), (54, 1, 3, 3, 3), 1, group=54),
    "conv dilated": _conv((1, 128, 56, 56), (128, 128, 3, 3), 2, dilations=[2, 2]),
    "conv very dilated": _conv((1, 512, 33, 33), (128, 512, 3, 3), 12, dilations=[12, 12]),
    "conv depthwise dilated": _conv(
        (1, 256, 65, 65), (256, 1, 3, 3), 4, dilations=[4, 4], group=256
    ),
    "conv depthwise 7x7": _conv((1, 96, 56, 56), (96, 1, 7, 7), 3, group=96),
    "conv depthwise 31x31": _conv((1, 128, 32, 32), (128, 1, 31, 31), 15, group=128),
    "conv depthwise by 2": _conv((1, 240, 28, 28), (240, 1, 5, 5), 2, strides=[2, 2], group=240),
    "conv 1x7": _conv((1, 192, 17, 17), (192, 192, 1, 7), pads=[0, 3, 0, 3]),
    "conv 5x5": _conv((1, 64, 28, 28), (96, 64, 5, 5), 2),
    "conv 7x7 to colours": _conv((1, 64, 128, 128), (3, 64, 7, 7), 3),
    "conv 9x9 of colours": _conv((1, 3, 128, 128), (64, 3, 9, 9), 4),
    "conv of colours by 2": _conv((1, 3, 224, 224), (32, 3, 3, 3), 1, strides=[2, 2]),
    "conv of patches 16": _conv((1, 3, 224, 224), (384, 3, 16, 16), strides=[16, 16]),
    "conv of patches 4": _conv((1, 3, 224, 224), (96, 3, 4, 4), strides=[4, 4]),
    "conv 32 groups": _conv((1, 128, 56, 56), (128, 4, 3, 3), 1, group=32),
    "conv 8 groups": _conv((1, 128, 28, 28), (128, 16, 3, 3), 1, group=8),
    "conv 2 groups": _conv((1, 96, 27, 27), (256, 48, 5, 5), 2, group=2),
    "conv 1x1, 3 groups": _conv((1, 240, 28, 28), (60, 80, 1, 1), group=3),
    "conv odd channels": _conv((1, 37, 45, 45), (53, 37, 3, 3), 1),
    "conv by 2, one side": _conv(
        (1, 64, 64, 64), (64, 64, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2]
    ),
    "up 2x2": _up((1, 256, 32, 32), (256, 128, 2, 2), strides=[2, 2]),
    "up 4x4": _up((1, 128, 32, 32), (128, 64, 4, 4), 1, strides=[2, 2]),
    "up 3x3": _up((1, 64, 64, 64), (64, 32, 3, 3), 1, strides=[2, 2], output_padding=[1, 1]),
    "up depthwise": _up((1, 64, 40, 40), (64, 1, 4, 4), 1, strides=[2, 2], group=64),
    "up 1d": _up((1, 256, 100), (256, 128, 16), 4, strides=[8]),
    "up of one pixel": _up((1, 100, 1, 1), (100, 512, 4, 4)),
    "product of a row": Operator(op="MatMul", inputs=[(1, 4096)], weights=[(4096, 1000)]),
    "product, odd": Operator(op="MatMul", inputs=[(7, 511)], weights=[(511, 333)]),
    "product": Operator(op="MatMul", inputs=[(128, 768)], weights=[(768, 3072)]),
    "products of heads": _one("MatMul", (12, 128, 64), (12, 64, 128)),
    "products of a row": _one("MatMul", (1, 12, 1, 64), (1, 12, 64, 512)),
    "Einsum": _one("Einsum", (1, 8, 100, 32), (1, 8, 100, 32), equation="bhid,bhjd->bhij"),
    "Softmax": _one("Softmax", (12, 128, 128), axis=-1),
    "Softmax of channels": _one("Softmax", (1, 19, 128, 128), axis=1),
    "LogSoftmax": _one("LogSoftmax", (4, 32000), axis=-1),
    "ReduceMean": _one("ReduceMean", (1, 256, 56, 56), axes=[2, 3]),
    "ReduceMax": _one("ReduceMax", (1, 64, 100, 100), axes=[1]),
    "ReduceSum of all": _one("ReduceSum", (1_000_000,)),
    "ReduceLogSumExp": _one("ReduceLogSumExp", (64, 1000), axes=[1]),
    "ArgMax of channels": _one("ArgMax", (1, 21, 256, 256), axis=1),
    "ArgMax of words": _one("ArgMax", (8, 32000), axis=-1),
    "CumSum": _with("CumSum", (64, 1000), 1),
    "TopK of a long row": _with("TopK", (1, 8400), [300], outputs=2),
    "TopK of rows": _with("TopK", (1000, 64), [2], outputs=2),
    "Transpose to last": _one("Transpose", (1, 64, 112, 112), perm=[0, 2, 3, 1]),
    "Transpose": _one("Transpose", (1000, 1000), perm=[1, 0]),
    "Transpose of heads": _one("Transpose", (4, 128, 12, 64), perm=[0, 2, 1, 3]),
    "Trilu": _one("Trilu", (12, 256, 256), upper=0),
    "Where": Operator(
        op="Where", inputs=[(12, 256, 256), (12, 256, 256)], kinds=[TensorProto.BOOL],
        constants=[np.full((), -1, np.float32)],
    ),
    "MaxPool": _one("MaxPool", (1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2]),
    "MaxPool 13x13": _one("MaxPool", (1, 256, 20, 20), kernel_shape=[13, 13], pads=[6] * 4),
    "AveragePool": _one("AveragePool", (1, 256, 35, 35), kernel_shape=[3, 3], pads=[1] * 4),
    "GlobalAveragePool": _one("GlobalAveragePool", (8, 1280, 7, 7)),
    "LRN": _one("LRN", (1, 96, 55, 55), size=5),
    "Erf": _one("Erf", (1, 128, 3072)),
    "HardSwish": _one("HardSwish", (1, 240, 28, 28)),
    "PRelu": Operator(op="PRelu", inputs=[(1, 64, 112, 112)], weights=[(64, 1, 1)]),
    "InstanceNormalization": _normed("InstanceNormalization", (1, 64, 128, 128), 64),
    "LayerNormalization": _normed("LayerNormalization", (1, 196, 384), 384),
    "Resize nearest": _twice((1, 128, 40, 40), mode="nearest"),
    "Resize linear": _twice((1, 64, 64, 64), mode="linear"),
    "Resize cubic": _twice((1, 3, 100, 100), mode="cubic"),
    "DepthToSpace": _one("DepthToSpace", (1, 48, 128, 128), blocksize=4, mode="CRD"),
    "Pad": _with("Pad", (1, 32, 128, 128), [0, 0, 3, 3, 0, 0, 3, 3], mode="reflect"),
    "GridSample": _one("GridSample", (1, 32, 64, 64), (1, 64, 64, 2)),
    "LSTM": Operator(
        op="LSTM", inputs=[(100, 1, 64)], weights=[(1, 512, 64), (1, 512, 128), (1, 1024)],
        attrs={"hidden_size": 128},
    ),
    "GRU": Operator(
        op="GRU", inputs=[(100, 4, 64)], weights=[(1, 384, 64), (1, 384, 128), (1, 768)],
        attrs={"hidden_size": 128, "linear_before_reset": 1},
    ),
    "NonZero": _one("NonZero", (100, 1000)),
}  # fmt: skip


def compare(name: str, operator: Operator, device: Device, seconds: float) -> float:
    """Prints a line; our time over onnxruntime's."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "operator.onnx"
        onnx.save(operator.model(), path)
        network = import_network(str(path)).network
        plan = build_plan(network, {}, device.spec, model_key="", notes={})
        data, peer = operator.data(), open_peer("onnxruntime", path)
        with lease(device.spec):
            module = Module(best_form(plan, device), device)
            found = module.run(data)
            for output, wanted in peer(data).items():
                span = max(float(np.ptp(wanted)), float(np.abs(wanted).max()))
                np.testing.assert_allclose(
                    found[output], wanted, atol=_TOLERANCE * span, err_msg=name
                )
            kernels = module.runner(0, len(module.plan.launches))
            calls = {"ours": lambda: module.run(data), "theirs": lambda: peer(data)}
            options = BenchOptions(budget_s=seconds, precision=0.02)
            outcome = compare_times({**calls, "kernels": kernels}, options=options)
    ours, theirs, own = (1e3 * timing.median_s for timing in outcome.timings)
    print(
        f"{name:24} {ours:8.3f} ({own:.3f}) / {theirs:8.3f} ms = {ours / theirs:4.2f}", flush=True
    )
    return ours / theirs


def main() -> None:
    """Compares the operators whose name has one of the words, or all."""
    parser = parser_of(__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seconds", type=float, default=2, help="Time for each of them.")
    given = parser.parse_args()
    device, ratios = open_device("pocl"), dict[str, float]()
    for name, operator in OPERATORS.items():
        if not given.words or any(word in name for word in given.words):
            ratios[name] = compare(name, operator, device, given.seconds)
    worst = max(ratios, key=ratios.__getitem__)
    print(
        f"{len(ratios)} operators: geometric mean {geometric_mean([*ratios.values()]):.2f}, worst "
        f"{ratios[worst]:.2f} ({worst}), load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
