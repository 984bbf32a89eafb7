"""Cases of attention: masks, biases, caches, packed inputs, shared heads, rotation."""

from typing import Any

import numpy as np

from tests.support.contrib import Array, Case, add, model_of, rand
from tests.support.peer import peer_outputs

_B, _S, _N, _D = 2, 4, 3, 8
_H = _N * _D


def ints(*numbers: Any) -> Array:
    """int32."""
    return np.array(numbers, np.int32)


_MASKS = {
    "mask": ints([1, 1, 1, 0], [1, 1, 0, 0]),
    "mask_rows": np.tril(np.ones((_B, _S, _S), np.int32)),
    "mask_lengths": ints(3, 4),
    "mask_ends": ints(4, 3, 1, 0),
}


def _attention() -> None:
    op, heads = "Attention", {"num_heads": _N}
    base = {"x": rand(_B, _S, 10), "w": rand(10, 3 * _H, seed=1, scale=0.4), "b": rand(3 * _H)}
    known = ("w", "b")
    add("attention", op, base, known=known, **heads)
    add("attention_causal", op, base, known=known, unidirectional=1, scale=0.5, **heads)
    for name, mask in _MASKS.items():
        add(f"attention_{name}", op, {**base, "m": mask}, known=known, **heads)
    filtered = {**base, "m": _MASKS["mask"]}
    add("attention_filter", op, filtered, known=known, mask_filter_value=-2.0, unidirectional=1,
        **heads)  # fmt: skip
    sizes = {"x": rand(_B, _S, 10), "w": rand(10, 2 * _H + 12), "b": rand(2 * _H + 12)}
    add("attention_sizes", op, sizes, known=known, qkv_hidden_sizes=[_H, _H, 12], **heads)
    past = {**base, "past": rand(2, _B, _N, 3, _D, seed=4)}
    add("attention_past", op, past, known=known, reads=("x", "w", "b", "", "past"),
        outputs=("y", "present"), unidirectional=1, **heads)  # fmt: skip
    biased = {**base, "bias": rand(1, _N, _S, _S)}
    add("attention_bias", op, biased, known=known, reads=("x", "w", "b", "", "", "bias"), **heads)
    plain = {"x": base["x"], "w": base["w"]}
    add("attention_plain", op, plain, known=("w",), outputs=("y", "present"), **heads)


def _multi_head() -> None:
    op, heads = "MultiHeadAttention", {"num_heads": _N}
    q, k, v = rand(_B, _S, _H), rand(_B, 6, _H, seed=1), rand(_B, 6, _H, seed=2)
    base = {"q": q, "k": k, "v": v}
    add("heads", op, base, **heads)
    add("heads_wide", op, {**base, "v": rand(_B, 6, 12)}, scale=0.2, **heads)
    add("heads_bias", op, {**base, "b": rand(3 * _H)}, known=("b",), **heads)
    same = {"q": q, "k": rand(_B, _S, _H, seed=1), "v": rand(_B, _S, _H, seed=2)}
    add("heads_causal", op, same, unidirectional=1, **heads)
    for name, mask in _MASKS.items():
        if name != "mask_ends":
            inputs = {**same, "m": mask}
            add(f"heads_{name}", op, inputs, reads=("q", "k", "v", "", "m"), **heads)
    for name, shape in {"": (_B, _N), "_shared": (1, 1)}.items():
        inputs = {**base, "a": rand(*shape, _S, 6)}
        add(f"heads_scores{name}", op, inputs, reads=("q", "k", "v", "", "", "a"), **heads)

    def unpacked(q: Array, k: Array) -> Array:
        """onnxruntime's CPU takes no packed inputs."""
        parts = [part.reshape(*part.shape[:2], -1) for part in np.moveaxis(k, 3, 0)]
        case = Case(op=op, inputs=dict(zip("qkv", (q, *parts), strict=True)), attrs=heads)
        return peer_outputs(model_of(case), case.fed)["y"]

    def all_unpacked(q: Array) -> Array:
        return unpacked(q[:, :, :, 0].reshape(*q.shape[:2], -1), q[:, :, :, 1:])

    add("heads_packed", op, {"q": rand(_B, _S, _N, 3, _D)}, meaning=all_unpacked, **heads)
    add("heads_pair", op, {"q": q, "k": rand(_B, 6, _N, 2, _D)}, meaning=unpacked, **heads)
    cross = {"q": q, "k": rand(_B, _N, 6, _D, seed=1), "v": rand(_B, _N, 6, _D, seed=2)}
    add("heads_cross", op, cross, **heads)
    past = {**same, "pk": rand(_B, _N, 5, _D, seed=3), "pv": rand(_B, _N, 5, _D, seed=4)}
    reads = ("q", "k", "v", "", "", "", "pk", "pv")
    add("heads_past", op, past, reads=reads, outputs=("y", "nk", "nv"), unidirectional=1, **heads)
    masked = {**past, "m": np.tril(np.ones((_B, 9), np.int32), 6)}
    add("heads_past_mask", op, masked, reads=("q", "k", "v", "", "m", "", "pk", "pv"),
        outputs=("y", "nk", "nv"), **heads)  # fmt: skip
    add("heads_present", op, same, outputs=("y", "nk", "nv"), **heads)
    _decoder(one={n: a[:, :1].copy() for n, a in base.items()}, past=past, cross=cross)


def _decoder(one: dict[str, Array], past: dict[str, Array], cross: dict[str, Array]) -> None:
    op, heads = "DecoderMaskedMultiHeadAttention", {"num_heads": _N}
    reads, names = ("q", "k", "v", "m", "", "pk", "pv", "n"), ("y", "nk", "nv")
    inputs = {**one, "pk": past["pk"], "pv": past["pv"], "n": ints(3)}
    masked = {**inputs, "m": ints([1, 0, 1, 1], [1, 1, 1, 1])}
    for name, given in {"": inputs, "_mask": masked}.items():
        add(f"decoder{name}", op, given, reads=tuple(r if r in given else "" for r in reads),
            outputs=names, inner=names[1:], past_present_share_buffer=1, **heads)  # fmt: skip
    add("decoder_cross", op, {**cross, "q": one["q"]}, **heads)


def angles(count: int, width: int) -> dict[str, Array]:
    """Cosines and sines of the rotation of that many positions."""
    turns = np.outer(np.arange(count), 0.7 ** np.arange(width))
    return {"cos": np.cos(turns).astype(np.float32), "sin": np.sin(turns).astype(np.float32)}


def _rotations() -> None:
    op, tables = "RotaryEmbedding", angles(12, _D // 2)
    known = tuple(tables)
    rows = np.array([[3, 4, 5, 6], [0, 1, 2, 3]], np.int64)
    for name, places in {"rows": rows, "first": np.array([2], np.int64)}.items():
        for interleaved in (0, 1):
            inputs = {"x": rand(_B, _S, _H), "p": places, **tables}
            add(f"rotary_{name}_{interleaved}", op, inputs, known=known, interleaved=interleaved)
    heads = {"x": rand(_B, _N, _S, _D), "p": rows, **tables}
    add("rotary_heads", op, heads, known=known)
    part = {"x": rand(_B, _S, _H), "p": rows, **angles(12, 2)}
    add("rotary_part", op, part, known=known, num_heads=_N, rotary_embedding_dim=4)


_KV, _Q, _WIDE = 2, 4, 16
"""Heads of keys and of queries, and their width, which is a multiple of 16 on the CPU."""


def _step(length: int, held: int, before: tuple[int, ...], total: int) -> dict[str, Array]:
    """Inputs of GroupQueryAttention: batches with tokens before, in caches of `held`."""
    batch = len(before)
    made = {
        "q": rand(batch, length, _Q * _WIDE), "k": rand(batch, length, _KV * _WIDE, seed=1),
        "v": rand(batch, length, _KV * _WIDE, seed=2),
        "pk": rand(batch, _KV, held, _WIDE, seed=3), "pv": rand(batch, _KV, held, _WIDE, seed=4),
        "s": ints(*before) + length - 1, "t": np.asarray(total, np.int32),
    }  # fmt: skip
    return made if held else {n: a for n, a in made.items() if n not in ("pk", "pv")}


_GROUPED: dict[str, Any] = {"num_heads": _Q, "kv_num_heads": _KV, "outputs": ("y", "nk", "nv")}


def _grouped() -> None:
    op, tables = "GroupQueryAttention", angles(16, _WIDE // 2)
    start = ("q", "k", "v", "", "", "s", "t")
    first, one, more = _step(_S, 0, (0, 0), _S), _step(1, 5, (5, 5), 6), _step(3, 5, (5,), 8)
    for name, inputs in {"first": first, "one": one, "more": more}.items():
        reads = start if name == "first" else tuple(inputs)
        options = {**_GROUPED, "known": ("t",), "reads": reads}
        add(f"grouped_{name}", op, inputs, **options)
        add(f"grouped_{name}_open", op, inputs, **{**options, "known": ()})
        add(f"grouped_{name}_cap", op, inputs, softcap=2.0, scale=0.3, **options)
        add(f"grouped_{name}_window", op, inputs, local_window_size=2, **options)
        add(f"grouped_{name}_all", op, inputs, causal=0, **options)
        add(f"grouped_{name}_smooth", op, inputs, smooth_softmax=1, **options)
        turned = {**options, "known": ("t", "cos", "sin"), "reads": (*reads, "cos", "sin")}
        for turn in (0, 1):
            add(f"grouped_{name}_rotary{turn}", op, {**inputs, **tables}, do_rotary=1,
                rotary_interleaved=turn, **turned)  # fmt: skip
        scores = {**inputs, "a": rand(1, _Q, inputs["q"].shape[1], int(inputs["t"]))}
        biased = {**options, "reads": (*reads, "", "", "", "a"), "softcap": 3.0}
        add(f"grouped_{name}_bias", op, scores, **biased)
        sunk = {**options, "reads": (*reads, *[""] * 4, "h")}
        add(f"grouped_{name}_sink", op, {**inputs, "h": rand(_Q)}, **sunk)
    packed = {"q": rand(_B, _S, (_Q + 2 * _KV) * _WIDE), "s": first["s"], "t": first["t"]}
    add("grouped_packed", op, packed, reads=("q", "", "", "", "", "s", "t"), known=("t",),
        **_GROUPED)  # fmt: skip
    known = ("t", "cos", "sin")
    placed = {**one, **tables, "p": np.array([[3], [7]], np.int64)}
    add("grouped_placed", op, placed, known=known, do_rotary=1, **_GROUPED)
    _buffers(op)


def _buffers(op: str) -> None:
    """Caches of full length, of which batches have filled different parts."""
    inner = {"inner": ("nk", "nv"), "known": ("t",)}  # onnxruntime leaves what is unused unwritten
    for name, (length, held, before, total) in {
        "one": (1, 8, (5, 2), 6), "grown": (1, 5, (5, 3), 6), "full": (1, 8, (7, 7), 8),
        "start": (4, 8, (0,), 4), "more": (3, 8, (2,), 5),
    }.items():  # fmt: skip
        inputs = _step(length, held, before, total)
        add(f"grouped_buffer_{name}", op, inputs, **inner, **_GROUPED)
        scores = {**inputs, "a": rand(1, _Q, length, total)}
        reads = (*inputs, "", "", "", "a")
        add(f"grouped_buffer_{name}_bias", op, scores, reads=reads, **inner, **_GROUPED)
        add(f"grouped_buffer_{name}_window", op, inputs, local_window_size=3, **inner, **_GROUPED)


_attention()
_multi_head()
_rotations()
_grouped()
