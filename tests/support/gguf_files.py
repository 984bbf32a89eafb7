"""Writes small GGUF files: pairs, tensors of random blocks, and a decoder of two layers."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retune.frontend.gguf.blocks import KINDS

NUMBERS = {kind.name: number for number, kind in KINDS.items()}
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,), "F16": (0,)}
"""Type -> bytes of a block where a float16 begins."""


def random_rows(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """uint8 [rows, bytes]: random blocks, whose scales are about 0.01."""
    found = KINDS[NUMBERS[kind]]
    rng = np.random.default_rng(seed)
    count = rows * columns // found.values_of_block
    if found.parts is None:
        values = rng.standard_normal((rows, columns)) * 0.1
        if kind == "BF16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.astype("<f4" if kind == "F32" else "<f2").view(np.uint8)
    raw = rng.integers(0, 256, (count, found.bytes_of_block), dtype=np.uint8)
    for at in HALVES[kind]:
        scale = rng.uniform(0.005, 0.02, (count, 1)) / (30 if kind.endswith("K") else 1)
        sign = -8 if kind == "Q4_1" and at else 1
        raw[:, at : at + 2] = (sign * scale).astype("<f2").view(np.uint8)
    return raw.reshape(rows, -1)


def text(value: str) -> bytes:
    """A string with its length."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: object) -> bytes:
    """A key with a value: bool, int, float, text, or a list of texts or integers."""
    match value:
        case bool():
            return text(key) + struct.pack("<I?", 7, value)
        case int():
            return text(key) + struct.pack("<II", 4, value)
        case float():
            return text(key) + struct.pack("<If", 6, value)
        case str():
            return text(key) + struct.pack("<I", 8) + text(value)
        case list() if value and isinstance(value[0], str):
            begin = struct.pack("<IIQ", 9, 8, len(value))
            return text(key) + begin + b"".join(map(text, value))
        case list():
            return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case _:
            raise TypeError(value)


def gguf_bytes(
    pairs: Mapping[str, object], tensors: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]
) -> bytes:
    """A file of version 3. Tensors are (type, shape, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(pair(key, value) for key, value in pairs.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        extents = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += text(name) + extents + struct.pack("<IQ", NUMBERS[kind], len(data))
        data += raw.tobytes() + bytes(-raw.nbytes % 32)
    return head + bytes(-len(head) % 32) + data


HEADS, SHARED, WIDTH, HIDDEN, INNER, LAYERS = 4, 2, 16, 64, 96, 2
TOKENS = [*"abcdefghijklmnopqrstuvwxyz.", "Ġ", "th", "the", "Ġthe", "<end>"]
PAIRS: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 40,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": SHARED,
    "llama.rope.freq_base": 1000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [*[1] * (len(TOKENS) - 1), 3],
    "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"],
    "tokenizer.ggml.eos_token_id": len(TOKENS) - 1,
}


def tiny_decoder(
    kind: str = "Q4_1",
    table: str = "Q8_0",
    architecture: str = "llama",
    pairs: Mapping[str, object] | None = None,
) -> bytes:
    """A decoder of two layers with random weights; qwen2 has biases, qwen3 norms of heads.

    `pairs` are in place of those among PAIRS.
    """
    tensors: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}

    def add(name: str, own: str, *shape: int) -> None:
        raw = random_rows(own, int(np.prod(shape[:-1])), shape[-1], seed=len(tensors))
        tensors[name] = own, shape, raw

    add("token_embd.weight", table, len(TOKENS), HIDDEN)
    add("output_norm.weight", "F32", HIDDEN)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for name in ("attn_norm", "ffn_norm"):
            add(f"{at}.{name}.weight", "F32", HIDDEN)
        for part, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED)):
            add(f"{at}.attn_{part}.weight", kind, heads * WIDTH, HIDDEN)
            if architecture == "qwen2":
                add(f"{at}.attn_{part}.bias", "F32", heads * WIDTH)
            if architecture == "qwen3" and part != "v":
                add(f"{at}.attn_{part}_norm.weight", "F32", WIDTH)
        add(f"{at}.attn_output.weight", kind, HIDDEN, HEADS * WIDTH)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN))):
            add(f"{at}.ffn_{name}.weight", kind, *shape)
        add(f"{at}.ffn_down.weight", kind, HIDDEN, INNER)
    stated = {**PAIRS, **(pairs or {})}
    own = {key.replace("llama.", f"{architecture}."): value for key, value in stated.items()}
    return gguf_bytes({**own, "general.architecture": architecture}, tensors)


def written(folder: Path, data: bytes) -> Path:
    """The file in the folder."""
    path = folder / "tiny.gguf"
    path.write_bytes(data)
    return path
