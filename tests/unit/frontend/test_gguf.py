"""Import of GGUF files: blocks by the reference definition, decoders, damaged files."""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.main import get_command

from retune.cli.main import app, run_command
from retune.core.errors import InputError, ModelError
from retune.frontend.gguf.blocks import KINDS
from retune.frontend.gguf.folder import import_gguf
from retune.frontend.gguf.reader import open_gguf
from tests.support import gguf_files, llama
from tests.support.gguf_files import LAYERS, NUMBERS, PAIRS, TOKENS, tiny_decoder, written

F = np.float32


def _half(block: bytes, at: int) -> np.float32:
    return F(np.frombuffer(block[at : at + 2], "<f2")[0])


def _q4_0(b: bytes) -> list[np.float32]:
    low = [_half(b, 0) * F((b[2 + j] & 15) - 8) for j in range(16)]
    return low + [_half(b, 0) * F((b[2 + j] >> 4) - 8) for j in range(16)]


def _q4_1(b: bytes) -> list[np.float32]:
    low = [_half(b, 0) * F(b[4 + j] & 15) + _half(b, 2) for j in range(16)]
    return low + [_half(b, 0) * F(b[4 + j] >> 4) + _half(b, 2) for j in range(16)]


def _q8_0(b: bytes) -> list[np.float32]:
    return [_half(b, 0) * F(np.int8(each - 256 * (each > 127))) for each in b[2:34]]


def _q4_k(b: bytes) -> list[np.float32]:
    values: list[np.float32] = []
    for part in range(8):
        if part < 4:
            scale, least = b[4 + part] & 63, b[8 + part] & 63
        else:
            scale = (b[8 + part] & 15) | ((b[part] >> 6) << 4)
            least = (b[8 + part] >> 4) | ((b[4 + part] >> 6) << 4)
        for j in range(32):
            byte = b[16 + 32 * (part // 2) + j]
            q = byte >> 4 if part % 2 else byte & 15
            values.append((_half(b, 0) * F(scale)) * F(q) - _half(b, 2) * F(least))
    return values


def _q6_k(b: bytes) -> list[np.float32]:
    values: list[np.float32] = []
    for n in range(256):
        half, row, j = n // 128, n % 128 // 32, n % 32
        byte = b[64 * half + 32 * (row % 2) + j]
        low = byte >> 4 if row > 1 else byte & 15
        high = (b[128 + 32 * half + j] >> (2 * row)) & 3
        scale = int.from_bytes(b[192 + n // 16 : 193 + n // 16], signed=True)
        values.append((_half(b, 208) * F(scale)) * F((low | high << 4) - 32))
    return values


def _f16(b: bytes) -> list[np.float32]:
    return [_half(b, 0)]


def _f32(b: bytes) -> list[np.float32]:
    return list(np.frombuffer(b, "<f4"))


def _bf16(b: bytes) -> list[np.float32]:
    return list(np.frombuffer(bytes(2) + b, "<f4"))


REFERENCE = {
    "F32": _f32, "F16": _f16, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0,
    "Q4_K": _q4_k, "Q6_K": _q6_k,
}  # fmt: skip
"""The scalar definitions of ggml, value by value."""


def test_every_type_has_a_reference():
    assert {*REFERENCE} == {*NUMBERS}


@pytest.mark.parametrize("name", REFERENCE)
def test_values_are_those_of_the_reference(name: str):
    kind = KINDS[NUMBERS[name]]
    raw = gguf_files.random_rows(name, 2, 256)
    blocks = raw.reshape(-1, kind.bytes_of_block)
    expected = [value for block in blocks for value in REFERENCE[name](block.tobytes())]
    assert np.array_equal(kind.values(raw).reshape(-1), np.array(expected, F))


@pytest.mark.parametrize("name", [name for name in REFERENCE if name.startswith("Q")])
def test_blocks_of_integers_are_the_same_values(name: str):
    kind = KINDS[NUMBERS[name]]
    raw = gguf_files.random_rows(name, 3, 512)
    raw[0, :4] = 0  # a block whose scale is 0
    found = kind.blocks(raw)
    assert found is not None
    zeros = 2.0 ** (found.bits - 1) if found.zeros is None else found.zeros[..., None]
    values = (found.quantized - zeros) * found.scales[..., None].astype(np.float64)
    expected = kind.values(raw)
    exact = found.zeros is None
    bound = 0 if exact else 2**-22 * np.abs(expected).max()
    assert np.abs(values.reshape(expected.shape).astype(F) - expected).max() <= bound


CASES = {
    "llama": ("Q4_1", "Q8_0", "llama"),
    "symmetric": ("Q4_0", "Q4_0", "llama"),
    "minima": ("Q8_0", "Q4_1", "llama"),
    "halves": ("F16", "F16", "qwen2"),
    "norms": ("BF16", "F32", "qwen3"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_decoder_means_what_its_file_says(case: str, tmp_path: Path):
    path = written(tmp_path, tiny_decoder(*CASES[case]))
    import_gguf(path, tmp_path / "out", all_logits=True)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    names = [each.name for each in session.get_inputs()][1:]
    caches = {n: np.zeros((1, gguf_files.SHARED, 0, gguf_files.WIDTH), F) for n in names}
    ids, found = [3, 14, 15, 9, 2, 6], []
    for part in (ids[:4], ids[4:5], ids[5:]):
        made = session.run(None, {"input_ids": np.array([part]), **caches})
        found.append(made[0][0])
        caches = dict(zip(names, made[1:], strict=True))
    expected = llama.logits(open_gguf(path), ids)
    assert np.abs(np.concatenate(found) - expected).max() < 1e-4 * np.abs(expected).max()


def test_products_have_the_accuracy_level_that_was_asked_for(tmp_path: Path):
    path = written(tmp_path, tiny_decoder())
    for level in (0, 4):
        import_gguf(path, tmp_path / "out", accuracy_level=level)
        nodes = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph.node
        stated = [
            {each.name: each.i for each in node.attribute}.get("accuracy_level", 0)
            for node in nodes
            if node.op_type == "MatMulNBits"
        ]
        assert stated and {*stated} == {level}
    with pytest.raises(InputError, match=r"expected 0 .* or 4 .*, got 3"):
        import_gguf(path, tmp_path / "out", accuracy_level=3)


def test_the_logits_of_the_last_token_alone(tmp_path: Path):
    path = written(tmp_path, tiny_decoder())
    made = import_gguf(path, tmp_path / "out", context=16)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert session.get_outputs()[0].shape == ["batch", 1, len(TOKENS)]
    assert made.kinds == {"Q4_1": 14, "F32": 5, "Q8_0": 1}
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())
    assert config["model"]["context_length"] == 16
    assert config["model"]["eos_token_id"] == [len(TOKENS) - 1]


def test_the_next_command_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["import-gguf", str(written(tmp_path, tiny_decoder())), "--out", str(tmp_path / "out")]
    assert run_command(words) == 0
    words = capsys.readouterr().out.partition("next: retune tune ")[2].split()
    assert {"sequence=1..20", "past=0..20"} <= {*words}  # 40 tokens, as the model's context
    command = get_command(app).commands["tune"]
    assert command.make_context("tune", words).params["out"] == Path("build")


def test_files_beside_an_imported_decoder_are_left(tmp_path: Path):
    path = written(tmp_path, tiny_decoder())
    with pytest.raises(InputError, match="got something else, which is left as it is"):
        import_gguf(path, tmp_path)
    for _ in range(2):
        import_gguf(path, tmp_path / "out")
    assert path.exists()


def test_data_of_a_tied_table_are_stored_once(tmp_path: Path):
    path = written(tmp_path, tiny_decoder("Q4_0", "F32"))
    made = import_gguf(path, tmp_path / "out", context=1)
    other = written(tmp_path, tiny_decoder("Q4_0", "F16"))
    halves = import_gguf(other, tmp_path / "out", context=1)
    assert made.weight_bytes - halves.weight_bytes == 2 * len(TOKENS) * gguf_files.HIDDEN


def test_the_tokenizer_joins_pairs_and_keeps_tokens_of_its_own(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers")
    import_gguf(written(tmp_path, tiny_decoder()), tmp_path / "out")
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    found = made.encode("in the<end>at")
    assert found.tokens == ["i", "n", "Ġthe", "<end>", "a", "t"]
    assert made.decode(found.ids) == "in theat"


def _with(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


def _count(at: int, count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + struct.pack("<Q", count) + data[at + 8 :]


LLAMA = struct.pack("<Q", 5) + b"llama"
NORM = b"output_norm.weight\1\0\0\0"
WRONG = {
    "magic": (_with(b"GGUF", b"GGML"), "got another kind"),
    "version": (_with(b"GGUF\3", b"GGUF\1"), "version 1"),
    "tensors": (_count(8, 1 << 60), "whole file"),
    "pairs": (_count(16, 1 << 40), "whole file"),
    "end": (lambda data: data[:-64], "up to byte"),
    "empty": (lambda data: b"", "an empty one"),
    "type": (_with(struct.pack("<IQ", 8, 0), struct.pack("<IQ", 99, 0)), "type 99"),
    "text": (_with(LLAMA, struct.pack("<Q", 1 << 50) + b"llama"), "its end within"),
    "architecture": (_with(LLAMA, LLAMA[:8] + b"mamba"), "'mamba'"),
    "rule": (_with(b"smollm", b"smolll"), "--no-tokenizer"),
    "shape": (_with(NORM + b"\x40", NORM + b"\x20"), "expected [64], got [32]"),
    "another": (_with(b"output_norm", b"output_morn"), "got 'output_morn.weight'"),
    "rows": (_with(struct.pack("<IQQ", 2, 64, 64), struct.pack("<IQQ", 2, 0, 1 << 62)), "from 1"),
}
"""What is wrong -> how it comes about, and a part of the sentence."""


@pytest.mark.parametrize("what", WRONG)
def test_a_damaged_file_costs_one_sentence(what: str, tmp_path: Path):
    change, message = WRONG[what]
    path = written(tmp_path, change(tiny_decoder()))
    with pytest.raises(ModelError) as caught:
        import_gguf(path, tmp_path / "out")
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(3))
def test_mutated_headers_are_read_or_refused(seed: int, tmp_path: Path):
    rng = np.random.default_rng(seed)
    data = tiny_decoder()
    header = data.index(b"blk.1.ffn_down")
    for _ in range(40):
        changed = bytearray(data)
        for at in rng.integers(0, header, rng.integers(1, 4)):
            changed[at] = rng.choice([0, 1, 127, 128, 255])
        path = written(tmp_path, bytes(changed[: rng.choice([len(data), rng.integers(len(data))])]))
        with contextlib.suppress(ModelError):
            found = open_gguf(path)
            assert all(tensor.values().shape == tensor.shape for tensor in found.tensors.values())


WRONG_PAIRS: list[tuple[str, object, str]] = [
    ("llama.block_count", LAYERS + 1, "expected a tensor 'blk.2.attn_norm.weight', got none"),
    ("llama.block_count", LAYERS - 1, "of 1 layers, got 'blk.1.attn_norm.weight'"),
    ("llama.context_length", (1 << 31) - 1, "tables of the rotation.* state a smaller --context"),
    ("llama.rope.freq_base", 0.0, "freq_base: expected a positive number, got 0.0"),
    ("llama.attention.layer_norm_rms_epsilon", -1.0, "epsilon: expected a positive number"),
    ("tokenizer.ggml.token_type", [1, 3], "token_type: expected as many as there are tokens"),
    ("tokenizer.ggml.merges", ["th"], "merges: expected pairs of tokens, got 'th'"),
]
"""A key, a value without a meaning, and a part of the sentence."""


@pytest.mark.parametrize(("key", "value", "message"), WRONG_PAIRS)
def test_a_value_without_a_meaning_is_refused(
    key: str, value: object, message: str, tmp_path: Path
):
    path = written(tmp_path, tiny_decoder(pairs={key: value}))
    with pytest.raises(ModelError, match=message):
        import_gguf(path, tmp_path / "out")


def test_a_key_of_another_type_is_refused(tmp_path: Path):
    pairs = {**PAIRS, "llama.block_count": "two"}
    path = written(tmp_path, gguf_files.gguf_bytes(pairs, {}))
    with pytest.raises(ModelError, match="block_count: expected an integer, got 'two'"):
        import_gguf(path, tmp_path / "out")
