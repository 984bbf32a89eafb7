"""Random cases of attention: sizes, masks, caches and attributes in any combination."""

from typing import Any

import numpy as np

from tests.support.contrib import Array, Case, rand
from tests.support.contrib_attention import angles

WIDE = 16
"""The width of a head that onnxruntime's CPU takes for GroupQueryAttention."""


class _Inputs:
    """The inputs that were chosen, by their index in the node."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.arrays: dict[str, Array] = {}
        self.reads: list[str] = []

    def put(self, index: int, name: str, array: Array) -> None:
        """The array is the input of that index."""
        self.reads += [""] * (index + 1 - len(self.reads))
        self.reads[index], self.arrays[name] = name, array

    def floats(self, index: int, name: str, *shape: int) -> None:
        """Normal numbers as an input."""
        self.put(index, name, rand(*shape, seed=int(self.rng.integers(1000))))

    def maybe(self, share: float) -> bool:
        """True in that share of cases."""
        return bool(self.rng.random() < share)

    def case(self, op: str, attrs: dict[str, Any], **options: Any) -> Case:
        """The case of these inputs."""
        return Case(op=op, inputs=self.arrays, reads=tuple(self.reads), attrs=attrs, **options)


def grouped(rng: np.random.Generator) -> Case:
    """GroupQueryAttention: a prompt, a step, several tokens, or a cache of full length."""
    kv, batch, length = (int(rng.integers(1, high)) for high in (3, 3, 6))
    count, held, before = kv * int(rng.integers(1, 4)), 0, [0] * batch
    kind = rng.integers(4)
    if kind == 1:
        length, held = 1, int(rng.integers(1, 7))
        before = [held, *(int(n) for n in rng.integers(0, held + 1, batch - 1))]
    elif kind:
        batch, held = 1, int(rng.integers(1, 7)) if kind == 2 else 12
        before = [held if kind == 2 else int(rng.integers(0, 7))]
    total = max(before) + length
    made = _Inputs(rng)
    made.floats(0, "q", batch, length, count * WIDE)
    for index, name in enumerate("kv", start=1):
        made.floats(index, name, batch, length, kv * WIDE)
        if held:
            made.floats(index + 2, f"p{name}", batch, kv, held, WIDE)
    made.put(5, "s", np.array(before, np.int32) + length - 1)
    made.put(6, "t", np.asarray(total, np.int32))
    attrs: dict[str, Any] = {"num_heads": count, "kv_num_heads": kv}
    if made.maybe(0.5):
        for index, (name, table) in enumerate(angles(20, WIDE // 2).items(), start=7):
            made.put(index, name, table)
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
    if made.maybe(0.3):
        made.floats(10, "a", *(int(rng.choice([1, n])) for n in (batch, count)), length, total)
    if made.maybe(0.2):
        made.floats(11, "h", count)
    attrs |= {"softcap": 2.0} if made.maybe(0.3) else {}
    attrs |= {"local_window_size": int(rng.integers(1, 5))} if made.maybe(0.3) else {}
    outputs = {"outputs": ("y", "nk", "nv"), "inner": ("nk", "nv")}
    return made.case("GroupQueryAttention", attrs, known=("t",), **outputs)


def _mask(made: _Inputs, index: int, kinds: list[tuple[int, ...]], keys: int) -> None:
    """A mask of one of these shapes, or none; one of one dimension is of lengths."""
    shape = [(), *kinds][made.rng.integers(len(kinds) + 1)]
    if shape:
        low, high = (1, keys + 1) if len(shape) == 1 else (0, 2)
        made.put(index, "m", made.rng.integers(low, high, shape).astype(np.int32))


def multi_head(rng: np.random.Generator) -> Case:
    """MultiHeadAttention, with and without biases, masks and caches."""
    count, batch, length = (int(rng.integers(1, high)) for high in (4, 3, 5))
    width, held = int(rng.choice([4, 8])), int(rng.choice([0, 3]))
    new = length + int(rng.choice([0, 2]))
    keys, hidden = held + new, count * width
    made = _Inputs(rng)
    made.floats(0, "q", batch, length, hidden)
    for index, name in enumerate("kv", start=1):
        made.floats(index, name, batch, new, hidden)
        if held:
            made.floats(index + 5, f"p{name}", batch, count, held, width)
    if made.maybe(0.4):
        made.floats(3, "b", 3 * hidden)
    _mask(made, 4, [(batch, keys), (batch, length, keys), (batch,)], keys)
    if made.maybe(0.3):
        made.floats(5, "a", *(int(rng.choice([1, n])) for n in (batch, count)), length, keys)
    attrs = {"num_heads": count}
    attrs |= {"unidirectional": 1} if made.maybe(0.4) and new == length else {}
    return made.case("MultiHeadAttention", attrs, outputs=("y", "nk", "nv"))


def attention(rng: np.random.Generator) -> Case:
    """Attention with a projection, of which values may have another width."""
    count, batch, length = (int(rng.integers(1, high)) for high in (4, 3, 5))
    width, held = int(rng.choice([4, 8])), int(rng.choice([0, 3]))
    wide = width if held else int(rng.choice([width, 6]))
    sizes = [count * width, count * width, count * wide]
    made = _Inputs(rng)
    made.floats(0, "x", batch, length, 10)
    made.floats(1, "w", 10, sum(sizes))
    if made.maybe(0.7):
        made.floats(2, "b", sum(sizes))
    keys = held + length
    _mask(made, 3, [(batch, keys), (batch, length, keys), (batch,)], keys)
    if held:
        made.floats(4, "p", 2, batch, count, held, width)
    elif made.maybe(0.3):
        made.floats(5, "a", *(int(rng.choice([1, n])) for n in (batch, count)), length, keys)
    attrs: dict[str, Any] = {"num_heads": count, "qkv_hidden_sizes": sizes}
    attrs |= {"unidirectional": 1} if made.maybe(0.4) else {}
    attrs |= {"scale": 0.3} if made.maybe(0.3) else {}
    outputs = ("y", "n") if held else ("y",)
    return made.case("Attention", attrs, outputs=outputs)
