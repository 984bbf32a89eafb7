"""Generation: what is drawn from logits, calls of a decoder, text from tokens."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from retune.core.dims import Size, dim_of
from retune.core.dtypes import FLOAT32, INT64, TensorType
from retune.core.errors import InputError
from retune.frontend.gguf.folder import import_gguf
from retune.frontend.gguf.reader import open_gguf
from retune.language.decoder import Decoder
from retune.language.generation import Generation
from retune.language.sampling import Sampler, Sampling
from retune.language.text import Text
from tests.support import llama
from tests.support.gguf_files import SHARED, TOKENS, WIDTH, tiny_decoder, written

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 3.0], np.float32)


def draws(count: int = 200, **settings: float) -> list[int]:
    sampler = Sampler(Sampling(**settings))  # type: ignore[arg-type]
    return [sampler.pick(LOGITS) for _ in range(count)]


def test_greedy_is_the_first_of_the_largest():
    assert set(draws(top_k=3, top_p=0.1)) == {1}


def test_chances_are_those_of_a_softmax():
    found = np.bincount(draws(2_000, temperature=2.0, seed=4), minlength=5) / 2_000
    chances = np.exp(LOGITS / 2)
    assert np.abs(found - chances / chances.sum()).max() < 0.03


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {1, 4}),
        ({"top_k": 3}, {1, 2, 4}),
        ({"top_p": 0.5}, {1, 4}),
        ({"top_p": 0.3}, {1}),
        ({"temperature": 1e-3}, {1, 4}),
    ],
)
def test_other_tokens_never_follow(settings: dict[str, float], allowed: set[int]):
    assert set(draws(200, **({"temperature": 1.0} | settings))) == allowed


def test_equal_seeds_draw_equal_tokens():
    first, again, other = (draws(temperature=1.0, seed=seed) for seed in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.5}, {"seed": -1}]
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, float]):
    (name,) = settings
    with pytest.raises(InputError, match=f"{name}: expected"):
        Sampling(**settings)  # type: ignore[arg-type]


class Session:
    """onnxruntime's calls in a row of an imported decoder; what each call was given."""

    def __init__(self, model: Path, capacity: int = 20) -> None:
        self._session = onnxruntime.InferenceSession(model)
        self._names = [entry.name for entry in self._session.get_inputs()][1:]
        self.capacity = capacity
        self.calls: list[int] = []
        self.reset()

    @property
    def length(self) -> int:
        return self._caches[self._names[0]].shape[2]

    def reset(self) -> None:
        empty = np.zeros((1, SHARED, 0, WIDTH), np.float32)
        self._caches = dict.fromkeys(self._names, empty)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls.append(inputs["input_ids"].shape[1])
        found = self._session.run(None, {**inputs, **self._caches})
        logits, *caches = (np.asarray(array) for array in found)
        self._caches = dict(zip(self._names, caches, strict=True))
        return {"logits": logits}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder: its GGUF file, and what is imported of it in `out`."""
    path = tmp_path_factory.mktemp("decoder")
    import_gguf(written(path, tiny_decoder()), path / "out")
    return path


def ids(most: int = 8, least: int = 1) -> dict[str, TensorType]:
    """The input of tokens, so many of them."""
    return {"input_ids": TensorType((1, dim_of(Size("sequence", least, most))), INT64)}


def decoder(folder: Path, *, most: int = 8, least: int = 1, capacity: int = 20) -> Decoder:
    steps = Session(folder / "out" / "model.onnx", capacity)
    return Decoder(steps, ids(most, least), "tiny")


PROMPT = [8, 13, 30]


def test_greedy_tokens_are_those_of_the_file(folder: Path):
    found = list(Generation(decoder(folder), PROMPT, 10))
    file, known = open_gguf(folder / "tiny.gguf"), list(PROMPT)
    for _ in found:
        known.append(int(llama.logits(file, known)[-1].argmax()))
    assert found == known[len(PROMPT) :]


def test_a_long_prompt_takes_several_calls(folder: Path):
    prompt = [1, 2, 3, 4, 5, 6, 7]
    whole, parts = (list(Generation(decoder(folder, most=m), prompt, 3)) for m in (8, 3))
    assert whole == parts
    steps = Session(folder / "out" / "model.onnx")
    assert list(Generation(Decoder(steps, ids(3), "tiny"), prompt, 3)) == whole
    assert steps.calls == [3, 3, 1, 1, 1]


def test_it_ends_at_an_end_at_the_count_and_where_the_space_ends(folder: Path):
    tokens = list(Generation(decoder(folder), PROMPT, 6))
    assert len(tokens) == 6
    counted = Generation(decoder(folder), PROMPT, 6)
    assert counted.ended_by == ""
    assert (len(list(counted)), counted.ended_by) == (6, "count")
    ended = Generation(decoder(folder), PROMPT, 6, ends=frozenset(tokens[3:4]))
    assert list(ended) == tokens[: tokens.index(tokens[3])] and ended.ended_by == "token"
    full = Generation(decoder(folder, capacity=4), PROMPT, 6)
    assert list(full) == tokens[:3] and full.ended_by == "capacity"
    assert full.decoded == 2 and full.decode_rate > 0 and full.prefill_rate > 0


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], {}, "at least one token"),
        ([1] * 6, {"capacity": 4}, "at most 5 tokens, got 6"),
        ([1, 2], {"least": 3}, "calls of at least 3 tokens, got 2"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(
    folder: Path, prompt: list[int], settings: dict[str, int], message: str
):
    with pytest.raises(InputError, match=message):
        list(Generation(decoder(folder, **settings), prompt, 2))


def test_a_prompt_that_does_not_fit_is_refused_before_it_is_shown(folder: Path):
    with pytest.raises(InputError, match="at most 5 tokens, got 6"):
        Generation(decoder(folder, capacity=4), [1] * 6, 2)


def test_a_tokenizer_of_sentencepiece_is_to_be_converted(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(InputError, match=r"tokenizer.model, of SentencePiece; convert it with"):
        Text.of([tmp_path])


def test_text_that_is_not_unicode_is_refused(folder: Path):
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"expected text in UTF-8, got .* at character 1"):
        Text.of([folder / "out"]).tokens("a\udcff")


def test_another_network_is_no_decoder(folder: Path):
    steps = Session(folder / "out" / "model.onnx")
    inputs = {**ids(), "pixels": TensorType((1, 3), FLOAT32)}
    with pytest.raises(InputError, match="expected a decoder with inputs"):
        Decoder(steps, inputs, "tiny")


def test_caches_that_do_not_grow_are_refused(folder: Path):
    steps = Session(folder / "out" / "model.onnx", capacity=0)
    with pytest.raises(InputError, match="whose caches grow, got states of one shape"):
        Decoder(steps, ids(), "tiny")


@pytest.mark.parametrize("token", [-1, 32])
def test_tokens_beyond_the_vocabulary_are_refused(folder: Path, token: int):
    """A kernel would read behind the table."""
    steps = Session(folder / "out" / "model.onnx")
    with pytest.raises(InputError, match=f"from 0 to 31, got {token}; use this model"):
        Decoder(steps, ids(), "tiny", vocabulary=32).logits([7, token])
    assert steps.calls == []


def test_masks_and_positions_are_those_of_all_tokens():
    class Recorded:
        length, capacity, seen = 3, 9, dict[str, np.ndarray]()

        def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            self.seen.update(inputs)
            return {"logits": np.zeros((1, 2, 5), np.float32)}

        def reset(self) -> None:
            self.length = 0

    steps, kind = Recorded(), TensorType((1, dim_of(Size("n", 1, 9))), INT64)
    names = ("input_ids", "attention_mask", "position_ids")
    Decoder(steps, dict.fromkeys(names, kind), "tiny").logits([7, 8])
    assert {name: array.tolist() for name, array in steps.seen.items()} == {
        "input_ids": [[7, 8]], "attention_mask": [[1] * 5], "position_ids": [[3, 4]],
    }  # fmt: skip


def test_text_becomes_tokens_and_pieces_become_the_text(folder: Path):
    pytest.importorskip("tokenizers")
    text = Text.of([folder / "nowhere", folder / "out"])
    assert text.ends == {len(TOKENS) - 1}
    tokens = text.tokens("in the")
    assert [TOKENS[token] for token in tokens] == ["i", "n", "Ġthe"]
    assert list(text.pieces(iter(tokens))) == ["i", "n", " the", ""]


def test_a_character_of_several_tokens_comes_whole():
    class Bytes:
        def decode(self, tokens: list[int]) -> str:
            return bytes(tokens).decode("utf-8", "replace")

    pieces = list(Text(Bytes(), frozenset()).pieces(iter("aé€".encode())))
    assert pieces == ["a", "", "é", "", "", "€", ""]


def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path: Path):
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"expected tokenizer\.json in .*got none"):
        Text.of([tmp_path])
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="expected a tokenizer"):
        Text.of([tmp_path])


@pytest.mark.parametrize("content", ["{", "{}", '{"model": {"eos_token_id": ["x"]}}', "[]"])
def test_a_damaged_configuration_is_refused(content: str, folder: Path, tmp_path: Path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_bytes((folder / "out/tokenizer.json").read_bytes())
    (tmp_path / "genai_config.json").write_text(content)
    with pytest.raises(InputError, match=r"expected model\.eos_token_id"):
        Text.of([tmp_path])
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"eos_token_id": 2}}))
    assert Text.of([tmp_path]).ends == {2}
