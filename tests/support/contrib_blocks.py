"""Cases of weights of a few bits: MatMulNBits and GatherBlockQuantized."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from retune.ops.packed import packed
from tests.support.contrib import Array, add, rand

_RNG = np.random.default_rng(12)


def codes(bits: int, *shape: int) -> Array:
    """Random codes of so many bits, one in each byte."""
    return _RNG.integers(0, 1 << bits, shape).astype(np.uint8)


def _products() -> None:
    op, count = "MatMulNBits", 12
    for bits, block, depth in ((4, 16, 48), (4, 32, 40), (8, 16, 32), (2, 16, 64), (2, 32, 48)):
        blocks = -(-depth // block)
        name, sizes = f"nbits_{bits}_{block}_{depth}", {"N": count, "K": depth}
        attrs: dict[str, Any] = {**sizes, "bits": bits, "block_size": block}
        weight = {
            "w": packed(codes(bits, count, blocks, block), bits),
            "s": _RNG.uniform(0.01, 0.1, count * blocks).astype(np.float32),
        }
        known, x = ("w", "s"), {"x": rand(2, 3, depth)}
        add(name, op, {**x, **weight}, known=known, tolerance=5e-5, **attrs)
        room = -(-blocks * bits // 8) * 8 // bits
        zeros = {"z": packed(codes(bits, count, room), bits).reshape(-1)}
        options = {"tolerance": 5e-5, **attrs}
        add(f"{name}_zeros", op, {**x, **weight, **zeros}, known=(*known, "z"), **options)
        if bits == 4:
            floats = {"z": _RNG.uniform(5, 9, (count, blocks)).astype(np.float32)}
            add(f"{name}_floats", op, {**x, **weight, **floats}, known=(*known, "z"), **options)
            bias = {"x": rand(1, depth), **weight, "b": rand(count)}
            add(f"{name}_bias", op, bias, known=("w", "s", "b"), accuracy_level=1,
                reads=("x", "w", "s", "", "", "b"), **options)  # fmt: skip
            whole = {"accuracy_level": 4, **options, "tolerance": 2e-2}
            add(f"{name}_integers", op, {**x, **weight, **zeros}, known=(*known, "z"), **whole)
    _groups(op)


def _groups(op: str) -> None:
    """Columns whose scales are not those of their blocks, as GPTQ orders them."""
    count, depth, block = 12, 48, 16
    weight = {
        "x": rand(3, depth), "w": packed(codes(4, count, 3, block), 4),
        "s": _RNG.uniform(0.01, 0.1, count * 3).astype(np.float32),
    }  # fmt: skip
    even, uneven = _RNG.permutation(np.repeat(np.arange(3), block)), _RNG.integers(0, 3, depth)
    for name, group in {"even": even, "uneven": uneven}.items():
        add(f"nbits_groups_{name}", op, {**weight, "g": group.astype(np.int32)},
            known=("w", "s", "g"), reads=("x", "w", "s", "", "g"), tolerance=5e-5,
            N=count, K=depth, bits=4, block_size=block)  # fmt: skip


def _tables() -> None:
    op, rows, width, block = "GatherBlockQuantized", 6, 64, 16
    places = np.array([[0, 5, -1], [3, 2, -6]], np.int64)
    for bits in (4, 8):
        table = {
            "t": packed(codes(bits, rows, width), bits), "i": places,
            "s": rand(rows, width // block),
        }  # fmt: skip
        attrs = {"bits": bits, "block_size": block, "quantize_axis": 1, "gather_axis": 0}
        add(f"table_{bits}", op, table, known=("t", "s"), **attrs)
        zeros = {"z": packed(codes(bits, rows, width // block), bits)}
        add(f"table_{bits}_zeros", op, {**table, **zeros}, known=("t", "s", "z"), **attrs)
    outside = {**table, "i": np.array([1, 6, -7, 2**40], np.int64)}
    add("table_outside", op, outside, known=("t", "s"), **attrs)


_products()
_tables()


def narrow_model(element: int, gather: int, quantize: int) -> tuple[Any, dict[str, Array]]:
    """A model that gathers from a table of four bits of ONNX's own types, and its inputs."""
    from tests.support.contrib import MICROSOFT, node, typed_model

    shape, block = [4, 6, 32], 16
    shape[quantize] = 32
    sizes = list(shape)
    sizes[quantize] = 2
    low = 0 if element == TensorProto.UINT4 else -8
    numbers = _RNG.integers(low, low + 16, shape)
    attrs = {"block_size": block, "gather_axis": gather, "quantize_axis": quantize}
    proto = node("GatherBlockQuantized", ["t", "i", "s"], ["y"], domain=MICROSOFT, **attrs)
    inputs = {"i": np.array([[1, 3], [0, -1]], np.int64)}
    made = typed_model([proto], inputs, ["y"], {"s": rand(*sizes)}, opset=21)
    made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    made.graph.initializer.append(helper.make_tensor("t", element, shape, numbers.reshape(-1)))
    return made, inputs
