"""The meaning of a llama-like decoder in numpy, straight from a GGUF file's tensors, in float64."""

import numpy as np

from retune.frontend.gguf.reader import GgufFile
from tests.support.gguf_files import HEADS, LAYERS, SHARED, WIDTH

Array = np.ndarray


def logits(file: GgufFile, ids: list[int]) -> Array:
    """float64 [tokens, words]: the logits after each token of a text without a cache."""
    a = file.text("general.architecture")
    values = {name: tensor.values().astype(np.float64) for name, tensor in file.tensors.items()}
    x = values["token_embd.weight"][ids]
    for layer in range(LAYERS):
        own = {
            n.removeprefix(f"blk.{layer}."): v for n, v in values.items() if f"blk.{layer}." in n
        }
        x = x + _attention(own, _norm(x, own["attn_norm.weight"]), interleaved=a == "llama")
        n = _norm(x, own["ffn_norm.weight"])
        gate = n @ own["ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (n @ own["ffn_up.weight"].T)
        x = x + inner @ own["ffn_down.weight"].T
    return _norm(x, values["output_norm.weight"]) @ values["token_embd.weight"].T


def _norm(x: Array, gain: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def _attention(own: dict[str, Array], x: Array, *, interleaved: bool) -> Array:
    parts = {}
    for part, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED)):
        made = x @ own[f"attn_{part}.weight"].T + own.get(f"attn_{part}.bias", 0)
        made = made.reshape(len(x), heads, WIDTH)
        gain = own.get(f"attn_{part}_norm.weight")
        parts[part] = made if gain is None else _norm(made, gain)
    q, k = (_turned(parts[part], interleaved=interleaved) for part in "qk")
    k, v = (np.repeat(part, HEADS // SHARED, axis=1) for part in (k, parts["v"]))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(WIDTH)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    sums = np.einsum("hij,jhd->ihd", weights, v)
    return sums.reshape(len(x), -1) @ own["attn_output.weight"].T


def _turned(x: Array, *, interleaved: bool) -> Array:
    """Pairs of elements as complex numbers, turned by their positions."""
    half = WIDTH // 2
    angles = np.arange(len(x))[:, None, None] * 1000.0 ** (-np.arange(half) / half)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = (first + 1j * second) * np.exp(1j * angles)
    parts = (turned.real, turned.imag)
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)
