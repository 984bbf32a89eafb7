"""Text to tokens and back, with the files that lie beside a decoder.

tokenizer.json is what the `tokenizers` library reads, genai_config.json says which tokens end a
text. `retune import-gguf`, onnxruntime-genai and optimum write such folders.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.core.errors import InputError
from retune.core.extras import explained

TOKENIZER, CONFIG = "tokenizer.json", "genai_config.json"
SENTENCEPIECE = "tokenizer.model"
"""What others write, which `tokenizers` does not read."""
_HALF_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a model."""

    tokenizer: Any
    """`tokenizers.Tokenizer`"""
    ends: frozenset[int]
    """Tokens that end a text."""

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Text":
        """What the first folder with a tokenizer.json holds; a folder may be the file itself.

        Raises: InputError if there is none, or it is damaged, or the library is missing.
        """
        files = [path if path.is_file() else path / TOKENIZER for path in folders]
        file = next((path for path in files if path.is_file()), None)
        if file is None:
            raise InputError(
                f"--tokenizer: expected {TOKENIZER} in {', '.join(map(str, folders))}, got "
                f"{_instead(folders)}"
            )
        with explained():
            from tokenizers import Tokenizer
        try:
            tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
            raise InputError(f"{file}: expected a tokenizer; {error}; write it again") from None
        return cls(tokenizer, _ends(file.with_name(CONFIG)))

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text. Raises: InputError for one that is not Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"prompt: expected text in UTF-8, got {text[error.start]!r} at character "
                f"{error.start}; write it in UTF-8"
            ) from None
        return list(self.tokenizer.encode(text).ids)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without those that mark its end and the like."""
        return self.tokenizer.decode(list(tokens))

    def pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        """What each token adds to the text, and at the end what was held back.

        A character of several tokens comes with the last of them.
        """
        known: list[int] = []
        shown = 0
        for token in tokens:
            known.append(token)
            text = self.text(known)
            end = len(text) if not text.endswith(_HALF_CHARACTER) else shown
            yield text[shown:end]
            shown = max(shown, end)
        yield self.text(known)[shown:]


def _instead(folders: Sequence[Path]) -> str:
    """What lies there instead of a tokenizer.json, and what to do."""
    for folder in folders:
        if (folder / SENTENCEPIECE).is_file():
            return (
                f"{folder / SENTENCEPIECE}, of SentencePiece; convert it with "
                f'transformers: AutoTokenizer.from_pretrained("{folder}").save_pretrained('
                f'"{folder}") writes {TOKENIZER}'
            )
    return "none; state the folder of the model"


def _ends(config: Path) -> frozenset[int]:
    """Raises: InputError for a file of another form."""
    if not config.is_file():
        return frozenset()
    try:
        found = json.loads(config.read_text(encoding="utf-8"))["model"]["eos_token_id"]
        ends = [found] if isinstance(found, int) else list(found)
        if not all(isinstance(end, int) for end in ends):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{config}: expected model.eos_token_id, a token or several; write it again"
        ) from None
    return frozenset(ends)
