"""Writes an ONNX model node by node, with its weights in a file beside it.

`Writer.product` and `Writer.looked_up` say how a GGUF weight is used. Its data are stored once,
however often and in whatever shapes they are read.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.frontend.gguf.blocks import Blocks
from retune.frontend.gguf.reader import GgufTensor
from retune.ops.packed import packed
from retune.proto.scope import MICROSOFT

OPSET, IR_VERSION = 21, 10
_INLINE = 1024
"""Bytes: smaller arrays stay in the model's own file."""
_ALIGNED = 64
"""Bytes: what the offset of an array in the file of weights is a multiple of."""
_CONTRIB = {
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "MatMulNBits",
    "SkipSimplifiedLayerNormalization",
}
"""Operators of com.microsoft. SimplifiedLayerNormalization has no domain in onnxruntime."""


class Writer:
    """The nodes and weights so far."""

    def __init__(self, weights: BinaryIO, location: str, accuracy_level: int = 0) -> None:
        """`weights` is the stream of the file of weights, and `location` its name.

        `accuracy_level` is that of products with quantized weights, as MatMulNBits numbers it.
        """
        self._stream, self._location, self._level = weights, location, accuracy_level
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._offsets: dict[str, tuple[int, int]] = {}

    def add(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> str:
        """A node of one output; the output's name."""
        self.add_all(op, inputs, [output], **attrs)
        return output

    def add_all(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> None:
        """A node."""
        domain = MICROSOFT if op in _CONTRIB else ""
        self._nodes.append(
            helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **attrs)
        )

    def cast(self, value: str, dtype: type[np.generic], output: str) -> str:
        """The value as another type."""
        return self.add(
            "Cast", [value], output, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        )

    def stored(self, name: str, array: np.ndarray, data: str = "") -> str:
        """A constant; its name. Those of equal `data` share their bytes, whatever their shapes."""
        if name in self._initializers:
            return name
        if array.nbytes < _INLINE:
            self._initializers[name] = numpy_helper.from_array(array, name)
            return name
        offset, length = self._offsets.get(data or name) or self._written(data or name, array)
        found = onnx.TensorProto(
            name=name,
            dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        entries = {"location": self._location, "offset": str(offset), "length": str(length)}
        for key, value in entries.items():
            found.external_data.add(key=key, value=value)
        self._initializers[name] = found
        return name

    def _written(self, data: str, array: np.ndarray) -> tuple[int, int]:
        self._stream.write(bytes(-self._stream.tell() % _ALIGNED))
        offset = self._stream.tell()
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        self._stream.write(raw)
        self._offsets[data] = offset, len(raw)
        return self._offsets[data]

    def product(
        self, x: str, weight: GgufTensor, output: str, bias: np.ndarray | None = None
    ) -> str:
        """x [..., columns] times the weight's transpose, plus the bias [rows]."""
        blocks = weight.kind.blocks(weight.raw)
        if blocks is None:
            made = output if bias is None else f"{output}.product"
            turned = f"{weight.name}.transposed"
            if turned not in self._initializers:
                self.add("Transpose", [self._floats(weight)], turned, perm=(1, 0))
            self.add("MatMul", [x, turned], made)
            return made if bias is None else self._biased(made, bias, output)
        inputs = [x, *self._block_arrays(weight.name, blocks, flat=False)]
        if bias is not None:
            inputs += [""] * (5 - len(inputs)) + [self.stored(f"{output}.bias", bias)]
        rows, columns = weight.shape
        size = blocks.quantized.shape[2]
        attrs = {"N": rows, "K": columns, "bits": blocks.bits, "block_size": size}
        if self._level:
            attrs["accuracy_level"] = self._level
        return self.add("MatMulNBits", inputs, output, **attrs)

    def _biased(self, made: str, bias: np.ndarray, output: str) -> str:
        return self.add("Add", [made, self.stored(f"{output}.bias", bias)], output)

    def looked_up(self, ids: str, table: GgufTensor) -> str:
        """The rows of the table that the indices name, as float32."""
        name = table.name
        blocks = table.kind.blocks(table.raw)
        if blocks is None:
            return self.add("Gather", [self._floats(table), ids], f"{name}.rows", axis=0)
        size = blocks.quantized.shape[2]
        quantized, scales, *zeros = self._block_arrays(name, blocks, flat=True)
        attrs = {"bits": blocks.bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
        rows = self.add("GatherBlockQuantized", [quantized, ids, scales], f"{name}.rows", **attrs)
        if not zeros:
            return rows
        # The operator has integers as zero points alone: the rest of the minimum is added.
        half = np.float32(1 << (blocks.bits - 1))
        assert blocks.zeros is not None
        rest = self.stored(f"{name}.rest", ((half - blocks.zeros) * blocks.scales)[..., None])
        split = self.stored(f"{name}.by_blocks", np.array([0, 0, -1, size]))
        whole = self.stored(f"{name}.whole", np.array([0, 0, table.shape[1]]))
        by_blocks = self.add("Reshape", [rows, split], f"{name}.split")
        added = self.add("Gather", [rest, ids], f"{name}.added", axis=0)
        total = self.add("Add", [by_blocks, added], f"{name}.total")
        return self.add("Reshape", [total, whole], f"{name}.joined")

    def _block_arrays(self, name: str, blocks: Blocks, *, flat: bool) -> list[str]:
        """The constants of quantized values, scales and, where blocks have them, zero points."""
        quantized = packed(blocks.quantized, blocks.bits)
        if flat:
            quantized = quantized.reshape(len(quantized), -1)
        label = f"{name}.quantized"
        stored = self.stored(f"{label}.flat" if flat else label, quantized, label)
        parts = [stored, self.stored(f"{name}.scales", blocks.scales)]
        if blocks.zeros is not None:
            parts.append(self.stored(f"{name}.zeros", blocks.zeros))
        return parts

    def _floats(self, weight: GgufTensor) -> str:
        """The weight as float32; stored in 16 bits where that is the same."""
        values = weight.values()
        if weight.kind.bytes_of_block == 4:
            return self.stored(weight.name, values)
        half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            return self.stored(weight.name, values)
        name = f"{weight.name}.float32"
        if not any(node.output[0] == name for node in self._nodes):
            self.cast(self.stored(weight.name, half), np.float32, name)
        return name

    def model(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        name: str,
    ) -> onnx.ModelProto:
        """The model of all nodes."""
        graph = helper.make_graph(
            self._nodes, name, inputs, outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="retune",
        )
