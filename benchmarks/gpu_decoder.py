"""One token of a decoder on a GPU, against PyTorch's graph of launches and the memory's rate.

    python -m benchmarks.gpu_decoder --device nvidia-cuda-0 --weights float16 4bits
    python -m benchmarks.gpu_decoder --device pocl --layers 2 --hidden 256 --inner 512 --words 500

A llama-like decoder with random weights, of 1.1e9 parameters unless stated otherwise: 22 layers of
2,048 elements, 32 heads of 64 which share 4 heads of keys and values, 5,632 inner elements and
32,000 words. Batch 1, default schedules, each form that the device has, and caches of so many
tokens, `--held`, which are random too.

`float16` are weights and values in that type, and PyTorch's likewise. `4bits` are blocks of 32 with
a scale each (GGUF's Q4_0), which PyTorch multiplies by its own kernel in bfloat16. Times are those
of a token's launches with waiting, and of a call of a session, which writes the token and reads the
logits; PyTorch's are its kernels, replayed from a graph. Behind a time is the share of the memory's
rate: bytes of weights and caches that a token reads, as the bundle stores them, over those that a
kernel that only reads has read in that time. Logits are compared with PyTorch's in float32, by the
largest difference as a part of the range, which may be 1e-2. `--kernels N` prints the N heaviest.

The rate of groups that only read, and wait for each other after each of nine steps of a layer, is
what such a kernel may reach.
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.torch_decoder import TorchDecoder
from benchmarks.torch_peer import median_s, use_float32
from retune.api import build_plan, import_network
from retune.bundle.runtime.executor import forms_here
from retune.bundle.runtime.module import Module
from retune.codegen.network.resident import LINE_INTS, WAYS
from retune.core.config import cache_root
from retune.core.dims import assuming
from retune.core.ranges import Extents
from retune.device.opencl.resident import way_of
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.frontend.gguf.blocks import KINDS
from retune.frontend.gguf.decoder import DecoderConfig
from retune.frontend.gguf.reader import GgufFile, GgufTensor, Value
from retune.frontend.gguf.writer import Writer
from retune.pipeline.precision import precision_named

CAPACITY = 2048
EXTENTS = {
    "layers": 22, "hidden": 2048, "inner": 5632, "shared": 4, "words": 32000,
}  # fmt: skip
MOST_DEVIATION = 1e-2
"""Of the range of the logits."""
_WIDTH = 64
_TOKEN = 7


@dataclass(frozen=True, slots=True)
class Weights:
    """Which type weights have, and what is computed in."""

    kind: int
    """Number of a GGUF type."""
    precision: str
    peer: str
    """PyTorch's type."""


WEIGHTS = {
    "float16": Weights(1, "float16", "float16"),
    "4bits": Weights(2, "float32", "bfloat16"),
}


def random_decoder(options: Namespace, weights: Weights) -> DecoderConfig:
    """A decoder of these extents, as a GGUF file would say it."""
    hidden, inner, own = options.hidden, options.inner, (options.shared * _WIDTH, options.hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (options.words, hidden),
        "output": (options.words, hidden),
        "output_norm": (hidden,),
    }
    for n in range(options.layers):
        shapes |= {
            f"blk.{n}.attn_norm": (hidden,),
            f"blk.{n}.ffn_norm": (hidden,),
            f"blk.{n}.attn_q": (hidden, hidden),
            f"blk.{n}.attn_k": own,
            f"blk.{n}.attn_v": own,
            f"blk.{n}.attn_output": (hidden, hidden),
            f"blk.{n}.ffn_gate": (inner, hidden),
            f"blk.{n}.ffn_up": (inner, hidden),
            f"blk.{n}.ffn_down": (hidden, inner),
        }
    rng = np.random.default_rng(0)
    tensors = {
        f"{name}.weight": random_tensor(f"{name}.weight", weights.kind, shape, rng)
        for name, shape in shapes.items()
    }
    facts: dict[str, Value] = {
        "block_count": options.layers,
        "context_length": CAPACITY,
        "embedding_length": hidden,
        "feed_forward_length": inner,
        "attention.head_count": hidden // _WIDTH,
        "attention.head_count_kv": options.shared,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    own_facts = {f"qwen2.{key}": value for key, value in facts.items()}
    metadata = {"general.architecture": "qwen2", **own_facts}
    return DecoderConfig.of(GgufFile(Path("random.gguf"), metadata, tensors))


def random_tensor(
    name: str, kind: int, shape: tuple[int, ...], rng: np.random.Generator
) -> GgufTensor:
    """Gains are ones; the products of a matrix with normal numbers are about normal.

    Floats have random signs and mantissas, and one exponent: normal numbers take a minute.
    """
    if len(shape) == 1:
        ones = np.ones((1, *shape), "<f4").view(np.uint8)
        return GgufTensor(name, KINDS[0], shape, ones)
    found, deviation = KINDS[kind], shape[1] ** -0.5
    if found.parts is None:
        own = int(np.array(2.0 ** round(np.log2(deviation / 1.5)), np.float16).view(np.uint16))
        bits = np.frombuffer(rng.bytes(2 * shape[0] * shape[1]), "<u2") & 0x83FF | own
        return GgufTensor(name, found, shape, bits.reshape(shape).view(np.uint8))
    blocks = shape[1] // found.values_of_block
    raw = rng.integers(0, 256, (shape[0], blocks, found.bytes_of_block), np.uint8)
    scales = rng.uniform(0.5, 1.5, (shape[0], blocks, 1)) * deviation / 4.8
    raw[..., :2] = scales.astype("<f2").view(np.uint8)
    return GgufTensor(name, found, shape, raw.reshape(shape[0], -1))


def compiled(
    decoder: DecoderConfig, weights: Weights, device: Device, folder: Path, held: int
) -> list[Module]:
    """Calls of one token, whose schedules are chosen for so many before it, in each form."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    with (folder / "model.onnx.data").open("wb") as stream:
        path.write_bytes(decoder.model(Writer(stream, "model.onnx.data")).SerializeToString())
    past = Extents.of("past", (f"0..{CAPACITY - 1}",)).dim
    shapes = {"batch": (1,), "sequence": (1,), "past": (past,)}
    precision = precision_named(weights.precision, device.spec)
    with assuming({"past": held}):
        network = import_network(path, shapes, precision=precision).network
        plan = build_plan(network, {}, device.spec, model_key="gpu_decoder", notes={})
    return [Module(replace(plan, form=form), device) for form in forms_here(plan, device)]


def random_caches(decoder: DecoderConfig, held: int) -> dict[str, np.ndarray]:
    """Keys and values of so many tokens, about normal."""
    rng = np.random.default_rng(held)
    return {
        f"past_key_values.{n}.{part}": rng.standard_normal(
            (1, decoder.shared, held, decoder.width), np.float32
        )
        for n in range(decoder.layers)
        for part in ("key", "value")
    }


def weight_bytes(decoder: DecoderConfig) -> float:
    """Bytes of a weight of a matrix in the bundle: blocks of 32 have a scale in float32."""
    blocks = decoder.file.tensors["output.weight"].kind.parts is not None
    return 0.5 + 4 / 32 if blocks else 2


def token_bytes(decoder: DecoderConfig, module: Module, held: int) -> int:
    """What a token reads of weights and caches, as the bundle stores them."""
    matrices = sum(
        tensor.shape[0] * tensor.shape[1]
        for name, tensor in decoder.file.tensors.items()
        if len(tensor.shape) == 2 and name != "token_embd.weight"
    )
    kind = module.inputs["past_key_values.0.key"].dtype
    caches = 2 * decoder.layers * decoder.shared * decoder.width * held
    return round(matrices * weight_bytes(decoder)) + caches * kind.itemsize


def read_gbytes_per_s(device: Device, size: int = 1 << 31) -> float:
    """1e9 bytes a second of a kernel that reads and adds, the best of a few launches."""
    group, groups = 256, 16 * device.spec.compute_units
    count = size // 16 // (group * groups)
    text = f"""__kernel void sums(__global const uint4* x, __global uint4* y) {{
  uint4 sum = 0;
  for (int i = 0; i < {count}; ++i) sum += x[(size_t)i * {group * groups} + get_global_id(0)];
  y[get_global_id(0)] = sum;
}}"""
    x, y = device.allocate(16 * group * groups * count), device.allocate(16 * group * groups)
    program, items = device.build(text), (group * groups, 1, 1)
    launch = device.prepare(program, "sums", [x, y], items, (group, 1, 1))
    best = min(device.time_kernels([launch], 3) / 3 for _ in range(5))
    return 1e-9 * 16 * group * groups * count / best


_STEPS = """
__kernel __attribute__((reqd_work_group_size({items}, 1, 1)))
void steps(__global const uint4* x, __global const int* counts, __global uint* y,
           __global resident_counter* state, const int last) {{
  const int me = get_local_id(0), lane = me % 32, groups = get_num_groups(0);
  const int warps = groups * ({items} / 32), warp = me / 32 * groups + get_group_id(0);
  for (int step = 0; step < last; ++step) {{
    if (me == 0 && step) {{
      resident_wait(state + {line} * step, groups);
    }}
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (int i = warp; i < counts[step]; i += warps) {{
      uint4 read[{reads}];
      for (int n = 0; n < {reads}; ++n) {{
        read[n] = x[((size_t)i * {reads} + n) * 32 + lane];
      }}
      for (int n = 1; n < {reads}; ++n) {{
        read[0] ^= read[n];
      }}
      y[i % 4096 * 32 + lane] = read[0].x ^ read[0].y ^ read[0].z ^ read[0].w;
    }}
    x += (size_t)counts[step] * {reads} * 32;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (me == 0) {{
      resident_done(state + {line} * (step + 1), 1);
    }}
  }}
}}"""


def stepped_gbytes_per_s(device: Device, sizes: Sequence[int], layers: int) -> float:
    """1e9 bytes a second of persistent groups that only read, and wait for each other: so many
    bytes of each step of a layer, from other addresses in each layer. The best of a few launches.

    No kernel that takes as many steps, and asks for nothing ahead of them, is faster.
    """
    items, reads = 512, 8
    counts = np.array([size // (16 * 32 * reads) for size in sizes] * layers, np.int32)
    way = WAYS[way_of(device.spec) or next(iter(WAYS))]
    text = way.text + _STEPS.format(items=items, line=LINE_INTS, reads=reads)
    program = device.build(text, options=way.options)
    x, y = device.allocate(16 * 32 * reads * int(counts.sum())), device.allocate(4 * 32 * 4096)
    state = device.allocate(4 * LINE_INTS * (len(counts) + 1))
    zeros, groups = np.zeros(state.bytes, np.uint8), max(1, device.spec.compute_units)
    given, range_ = [x, device.upload(counts), y, state], (groups * items, 1, 1)
    launch = device.prepare(program, "steps", given, range_, (items, 1, 1), (len(counts),))
    best = np.inf
    for _ in range(5):
        device.write(state, zeros)
        best = min(best, device.time([launch]))
    return 1e-9 * x.bytes / best


def steps_bytes(options: Namespace, each: float) -> list[int]:
    """What the nine steps of a layer read of weights, of so many bytes each: a norm, the products
    of queries, keys and values, rotations, scores, their sums, the product of those, a norm, the
    gated products, and the last one."""
    hidden, inner = options.hidden, options.inner
    own = hidden * (hidden + 2 * options.shared * _WIDTH)
    counts = (0, own, 0, 0, 0, hidden * hidden, 0, 2 * hidden * inner, hidden * inner)
    return [round(n * each) for n in counts]


@dataclass(frozen=True, slots=True)
class Peers:
    """PyTorch's decoders of the same weights."""

    exact: TorchDecoder
    """In float32, of the values that weights stand for."""
    fast: TorchDecoder
    """In 16 bits."""


def lines(
    decoder: DecoderConfig, module: Module, peers: Peers | None, options: Namespace, gbytes: float
) -> Iterator[str]:
    """What is printed of each length of the caches."""
    token = {"input_ids": np.array([[_TOKEN]])}
    with module.session() as session:
        for held in options.held:
            caches = random_caches(decoder, held)
            logits = module.run({**token, **caches})["logits"].reshape(-1)
            times = {"launches": median_s(module.run_launches, lambda: None)}
            session.reset(caches)
            times["call"] = median_s(lambda: session.run(token), lambda: None)
            traffic = 1e-9 * token_bytes(decoder, module, held)
            shares = (
                f"{name} {1e3 * s:.3f} ms ({traffic / s / gbytes:.0%})" for name, s in times.items()
            )
            yield f"{module.form}, {held} tokens, {traffic:.3f} GB each: " + ", ".join(shares)
            if peers is not None:
                yield "    " + compared(peers, caches, held, logits, times["launches"])
            yield from heaviest(module, {**token, **caches}, options.kernels)


def compared(
    peers: Peers, caches: Mapping[str, np.ndarray], held: int, logits: np.ndarray, own_s: float
) -> str:
    """PyTorch's time, and how far the logits of both are from those in float32."""
    for peer in (peers.exact, peers.fast):
        peer.hold(caches, held)
    exact = peers.exact.logits(_TOKEN)
    own, other = (
        float(np.abs(found - exact).max() / np.ptp(exact))
        for found in (logits, peers.fast.logits(_TOKEN))
    )
    verdict = "" if own <= MOST_DEVIATION else "WRONG: "
    us = peers.fast.us()
    return (
        f"PyTorch {1e-3 * us:.3f} ms: {1e6 * own_s / us:.2f}x; {verdict}off by {own:.1e}, "
        f"PyTorch by {other:.1e}"
    )


def heaviest(module: Module, feeds: Mapping[str, np.ndarray], count: int) -> Iterator[str]:
    """So many kernels, by the sum of their launches."""
    found: dict[str, list[float]] = {}
    for launch in module.profile(5, feeds) if count else ():
        found.setdefault(launch.kernel, []).append(launch.median_s)
    for kernel, times in sorted(found.items(), key=lambda entry: -sum(entry[1]))[:count]:
        each = 1e6 * sum(times) / len(times)
        yield f"    {kernel:72} {len(times):4} x {each:7.1f} us = {1e6 * sum(times):8.1f} us"


def main() -> None:
    """Measures the weights named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--held", type=int, nargs="+", default=[128, 1024], help="tokens before")
    for name, extent in EXTENTS.items():
        parser.add_argument(f"--{name}", type=int, default=extent)
    parser.add_argument("--read-bytes", type=int, default=1 << 31, help="of the kernel that reads")
    parser.add_argument("--kernels", type=int, default=0, metavar="N")
    parser.add_argument("--folder", type=Path, default=cache_root() / "gpu-decoder")
    options = parser.parse_args()
    device = open_device(options.device)
    use_float32()
    for name in options.weights:
        weights, started = WEIGHTS[name], time.monotonic()
        decoder = random_decoder(options, weights)
        modules = compiled(decoder, weights, device, options.folder, max(options.held))
        made_s = time.monotonic() - started
        print(f"{name}: made and compiled in {made_s:.0f} s", flush=True)
        peers = None
        if find_spec("torch") is not None:
            exact = TorchDecoder(decoder, "float32")
            peers = Peers(exact, TorchDecoder(decoder, weights.peer, packed=True))
        gbytes = read_gbytes_per_s(device, options.read_bytes)
        count = len(modules[0].plan.launches)
        print(f"{name}: {count} launches; memory is read at {gbytes:.0f} GB/s")
        if way_of(device.spec):
            steps = steps_bytes(options, weight_bytes(decoder))
            found = stepped_gbytes_per_s(device, steps, options.layers)
            print(f"{name}: by groups that wait after each step, at {found:.0f} GB/s")
        for module in modules:
            for line in lines(decoder, module, peers, options, gbytes):
                print(f"{name}: {line}", flush=True)
            module.close()


if __name__ == "__main__":
    main()
