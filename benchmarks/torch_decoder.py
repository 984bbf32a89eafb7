"""A llama-like decoder in PyTorch on a GPU: one token a call, its cache of a fixed capacity.

Weights are those of a GGUF file. Those of 4 bits are multiplied by PyTorch's own kernel for them
(`_weight_int4pack_mm`, in bfloat16), others as they are. As `torch_peer`, it imports torch when
it is used.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.torch_peer import graph_us
from retune.frontend.gguf.decoder import DecoderConfig
from retune.frontend.gguf.reader import GgufTensor

_INNER_TILES = 8
"""Of PyTorch's layout of 4-bit weights: the widest."""

Product = Callable[[Any], Any]


class TorchDecoder:
    """The decoder behind so many tokens: a call takes one more, always the one at that place."""

    def __init__(self, decoder: DecoderConfig, dtype: str, *, packed: bool = False) -> None:
        """Weights are converted to the type; quantized ones stay so if they are `packed`."""
        self._torch: Any = import_module("torch")
        self._decoder, self._dtype, self._packed = decoder, getattr(self._torch, dtype), packed
        self._place = "cuda" if self._torch.cuda.is_available() else "cpu"
        own = decoder.file.tensors
        self._table = self._on_device(_floats(own["token_embd.weight"]))
        self._gains = {n: self._on_device(t.values()) for n, t in own.items() if len(t.shape) == 1}
        self._head = self._product("output")
        parts = ("q", "k", "v")
        self._layers = [
            {
                "qkv": self._product(*(f"blk.{n}.attn_{part}" for part in parts)),
                "out": self._product(f"blk.{n}.attn_output"),
                "gate_up": self._product(f"blk.{n}.ffn_gate", f"blk.{n}.ffn_up"),
                "down": self._product(f"blk.{n}.ffn_down"),
            }
            for n in range(decoder.layers)
        ]
        self._caches: list[tuple[Any, Any]] = []
        self._held = 0
        self._token = self._torch.zeros(1, dtype=self._torch.int64, device=self._place)

    def hold(self, caches: Mapping[str, np.ndarray], held: int) -> None:
        """The caches, by their inputs' names, [1, heads, held, width], with a place behind them."""
        self._held = held
        room = ((0, 0), (0, 0), (0, 1), (0, 0))
        whole = {name: self._on_device(np.pad(data, room)) for name, data in caches.items()}
        self._caches = [
            (whole[f"past_key_values.{n}.key"], whole[f"past_key_values.{n}.value"])
            for n in range(self._decoder.layers)
        ]
        d = self._decoder
        rates = 1e4 ** -(np.arange(0, d.width, 2) / d.width)
        self._turn = tuple(self._on_device(np.tile(f(held * rates), 2)) for f in (np.cos, np.sin))

    def logits(self, token: int) -> np.ndarray:
        """float32 [words]: of the token behind the caches."""
        self._token.fill_(token)
        with self._torch.inference_mode():
            return self._step().float().cpu().numpy()[0]

    def us(self) -> float:
        """Microseconds of a call's kernels, from a graph of launches."""
        with self._torch.inference_mode():
            return graph_us(self._step)

    def _step(self) -> Any:
        functional = self._torch.nn.functional
        d, width = self._decoder, self._decoder.width
        x = self._table[self._token]
        for number, layer in enumerate(self._layers):
            qkv = layer["qkv"](self._norm(x, f"blk.{number}.attn_norm")).view(-1, width)
            q, k, v = qkv.split((d.heads, d.shared, d.shared))
            keys, values = self._caches[number]
            keys[0, :, self._held] = self._turned(k)
            values[0, :, self._held] = v
            made = functional.scaled_dot_product_attention(
                self._turned(q)[None, :, None], keys, values, enable_gqa=True
            )
            x = x + layer["out"](made.reshape(1, -1))
            gate, up = layer["gate_up"](self._norm(x, f"blk.{number}.ffn_norm")).chunk(2, -1)
            x = x + layer["down"](functional.silu(gate) * up)
        return self._head(self._norm(x, "output_norm"))

    def _norm(self, x: Any, name: str) -> Any:
        gain = self._gains[f"{name}.weight"]
        rms_norm: Any = self._torch.nn.functional.rms_norm
        return rms_norm(x, gain.shape, gain, self._decoder.epsilon)

    def _turned(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        cosine, sine = self._turn
        return x * cosine + self._torch.cat((-second, first), -1) * sine

    def _product(self, *names: str) -> Product:
        """The product with the rows of all these weights."""
        tensors = [self._decoder.file.tensors[f"{name}.weight"] for name in names]
        whole = tensors[0].with_rows_of(tensors[0].name, tensors[1:])
        blocks = whole.kind.blocks(whole.raw) if self._packed else None
        if blocks is None:
            weight = self._on_device(_floats(whole))
            linear: Any = self._torch.nn.functional.linear
            return lambda x: linear(x, weight)
        return self._packed_product(whole, blocks.quantized, blocks.scales)

    def _packed_product(self, whole: GgufTensor, values: np.ndarray, scales: np.ndarray) -> Product:
        """With symmetric weights of 4 bits."""
        torch, size = self._torch, values.shape[2]
        kernels: Any = torch.ops.aten
        convert = kernels._convert_weight_to_int4pack  # noqa: SLF001  it has no public name
        multiply = kernels._weight_int4pack_mm  # noqa: SLF001
        flat = values.reshape(whole.shape)
        pairs = torch.from_numpy(flat[:, ::2] << 4 | flat[:, 1::2]).cuda()
        weight = convert(pairs, _INNER_TILES)
        factors = np.stack((scales.T, np.zeros_like(scales.T)), -1)
        zeros = torch.from_numpy(np.ascontiguousarray(factors)).cuda().to(torch.bfloat16)
        return lambda x: multiply(x, weight, size, zeros)

    def _on_device(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._place).to(self._dtype)


def _floats(tensor: GgufTensor) -> np.ndarray:
    """The values; those of float16 as they are, whose conversion takes a minute for 1e9."""
    if tensor.kind.name == "F16":
        return tensor.raw.view("<f2").reshape(tensor.shape)
    return tensor.values()
