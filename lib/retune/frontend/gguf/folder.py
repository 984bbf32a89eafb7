"""Writes the folder of a decoder: model.onnx, its weights, its tokenizer and genai_config.json.

onnxruntime-genai reads such a folder, and so does `retune generate`.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.core.errors import InputError
from retune.core.files import check_replaces
from retune.core.replacing import whole_folder
from retune.frontend.gguf.decoder import DecoderConfig
from retune.frontend.gguf.reader import GgufFile, open_gguf
from retune.frontend.gguf.tokenizer import tokenizer_of
from retune.frontend.gguf.writer import Writer

MODEL, WEIGHTS, TOKENIZER, CONFIG = (
    "model.onnx", "model.onnx.data", "tokenizer.json", "genai_config.json",
)  # fmt: skip
ACCURACY_LEVELS = (0, 4)
"""Of products with quantized weights: in floats, or of rows that are rounded to int8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDecoder:
    """What was written."""

    folder: str
    architecture: str
    layers: int
    context: int
    kinds: dict[str, int]
    """Type of GGUF tensors -> how many there are."""
    widened: dict[str, str]
    """Type -> in how many bits it is stored here, where that is more than in the file."""
    weight_bytes: int


_WIDENED = {"Q6_K": "8 bits in blocks of 16", "BF16": "float32"}


def import_gguf(
    path: Path,
    out: Path,
    *,
    context: int | None = None,
    all_logits: bool = False,
    accuracy_level: int = 0,
    tokenizer: bool = True,
) -> ImportedDecoder:
    """Writes the folder `out`, instead of one that it wrote before; what it holds.

    `context` are the tokens for which there are rotations, `all_logits` asks for the logits of all
    tokens and not of the last one alone. With `accuracy_level` 4 rows may be rounded to int8 before
    they are multiplied with quantized weights. Without `tokenizer` there is no tokenizer.json.
    Raises: ModelError if the file is damaged, or of another architecture or type of tensors.
    InputError if `out` holds other files, or for another accuracy level than 0 and 4.
    """
    if accuracy_level not in ACCURACY_LEVELS:
        raise InputError(
            f"accuracy level: expected 0 (floats) or 4 (rows in int8), got {accuracy_level}"
        )
    check_replaces(out, "an imported decoder", _is_imported)
    file = open_gguf(path)
    decoder = DecoderConfig.of(file, context)
    words = tokenizer_of(file) if tokenizer else None
    with whole_folder(out) as folder:
        with (folder / WEIGHTS).open("wb") as stream:
            writer = Writer(stream, WEIGHTS, accuracy_level)
            model = decoder.model(writer, all_logits=all_logits)
            size = stream.tell()
        (folder / MODEL).write_bytes(model.SerializeToString())
        if words is not None:
            (folder / TOKENIZER).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
        (folder / CONFIG).write_text(json.dumps(_config(decoder), indent=2), encoding="utf-8")
    kinds = Counter(tensor.kind.name for tensor in file.tensors.values())
    return ImportedDecoder(
        folder=str(out),
        architecture=decoder.architecture,
        layers=decoder.layers,
        context=decoder.context,
        kinds=dict(kinds.most_common()),
        widened={kind: _WIDENED[kind] for kind in kinds if kind in _WIDENED},
        weight_bytes=size,
    )


def _is_imported(folder: Path) -> bool:
    """Whether a folder has no other files than an import writes."""
    if not folder.is_dir():
        return False
    return {entry.name for entry in folder.iterdir()} <= {MODEL, WEIGHTS, TOKENIZER, CONFIG}


def _config(decoder: DecoderConfig) -> dict[str, Any]:
    """genai_config.json, as onnxruntime-genai documents it."""
    file: GgufFile = decoder.file
    caches = {
        f"{of}_{part}_names": f"{name}.%d.{part}"
        for of, name in (("past", "past_key_values"), ("present", "present"))
        for part in ("key", "value")
    }
    ends = [
        file.whole(key)
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in file.metadata
    ]
    model = {
        "type": decoder.architecture,
        "bos_token_id": file.whole("tokenizer.ggml.bos_token_id", -1),
        "eos_token_id": sorted(set(ends)),
        "context_length": decoder.context,
        "vocab_size": decoder.words,
        "decoder": {
            "filename": MODEL,
            "session_options": {"provider_options": []},
            "hidden_size": decoder.hidden,
            "head_size": decoder.width,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.shared,
            "num_hidden_layers": decoder.layers,
            "inputs": {"input_ids": "input_ids"}
            | {name: text for name, text in caches.items() if name.startswith("past")},
            "outputs": {"logits": "logits"}
            | {name: text for name, text in caches.items() if name.startswith("present")},
        },
    }
    return {"model": model, "search": {"max_length": decoder.context}}
