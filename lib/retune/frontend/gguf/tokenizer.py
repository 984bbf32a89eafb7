"""The tokenizer of a GGUF file as tokenizer.json, which the `tokenizers` library reads.

Files have byte-level BPE (`gpt2`) with a named rule that cuts text into words before pairs are
merged. The rules are those of the models that the names stand for.
"""

from typing import Any

from retune.core.errors import ModelError
from retune.frontend.gguf.reader import GgufFile

_SPECIAL, _USER = 3, 4
"""Kinds of tokens that are found before text is cut into words."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Contractions, words, numbers, other characters, lines and spaces."""
_DIGITS = {"type": "Digits", "individual_digits": True}


def _by_regex(numbers: str) -> dict[str, Any]:
    pattern = {"Regex": _WORDS % numbers}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


_RULES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _by_regex(r"\p{N}{1,3}"),
    "qwen2": _by_regex(r"\p{N}"),
}
"""Name of the rule -> what comes before the bytes; None: GPT-2's own rule, which that step has."""


def tokenizer_of(file: GgufFile) -> dict[str, Any]:
    """The content of tokenizer.json. Raises: ModelError for another kind of tokenizer."""
    model, rule = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre", "default")
    if model != "gpt2" or rule not in _RULES:
        raise ModelError(
            f"{file.path}: expected a tokenizer of kind gpt2 with a rule among "
            f"{', '.join(_RULES)}, got {model!r} with {rule!r}; import it with --no-tokenizer and "
            "put the original model's tokenizer.json beside model.onnx"
        )
    tokens, kinds = file.texts("tokenizer.ggml.tokens"), file.wholes("tokenizer.ggml.token_type")
    if len(kinds) not in (0, len(tokens)):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.token_type: expected as many as there are tokens, "
            f"{len(tokens)}, got {len(kinds)}; convert the model again"
        )
    merges = [_merge(file, merge) for merge in file.texts("tokenizer.ggml.merges")]
    added = [
        _added(number, tokens[number], kind)
        for number, kind in enumerate(kinds)
        if kind in (_SPECIAL, _USER)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _cutting(_RULES[rule]),
        "post_processor": _begun(file, tokens),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule == "llama-bpe",
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": merges,
        },
    }


def _merge(file: GgufFile, merge: str) -> list[str]:
    """The pair of tokens that become one."""
    pair = merge.split(" ", 1)
    if len(pair) < 2:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.merges: expected pairs of tokens, got {merge!r:.60}; "
            "convert the model again"
        )
    return pair


def _added(number: int, text: str, kind: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": kind == _SPECIAL}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": use_regex,
    }  # fmt: skip


def _cutting(first: dict[str, Any] | None) -> dict[str, Any]:
    if first is None:
        return _byte_level(use_regex=True)
    steps = [first, _byte_level(use_regex=first["type"] == "Digits")]
    return {"type": "Sequence", "pretokenizers": steps}


def _begun(file: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    """The step that puts the first token before every text, if the file wants one."""
    if not file.metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    number = file.whole("tokenizer.ggml.bos_token_id")
    if not 0 <= number < len(tokens):
        raise ModelError(
            f"{file.path}: tokenizer.ggml.bos_token_id: expected a token from 0 to "
            f"{len(tokens) - 1}, got {number}; convert the model again"
        )
    special, text = {"id": tokens[number], "type_id": 0}, {"id": "A", "type_id": 0}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": special}, {"Sequence": text}],
        "pair": [{"SpecialToken": special}, {"Sequence": text}],
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
        },
    }
