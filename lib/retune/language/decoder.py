"""Decoder: a bundle that takes tokens and returns the logits of the next one.

Keys and values of earlier tokens are states of a session. Inputs are found by the names that usual
exporters give them: input_ids, and where a model has them those of `core.decoding`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from retune.core.decoding import IDS, following
from retune.core.dims import Dim
from retune.core.dtypes import TensorType
from retune.core.errors import InputError

_LOGITS = "logits"


class Steps(Protocol):
    """Calls in a row that remember what came before, as `bundle.runtime.session.Session`."""

    @property
    def length(self) -> int:
        """Tokens that came before."""
        ...

    @property
    def capacity(self) -> int:
        """The most tokens that may come before a call."""
        ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are not states."""
        ...

    def reset(self) -> None:
        """Nothing came before."""
        ...


class Decoder:
    """A session of a decoder. One text at a time."""

    def __init__(
        self,
        steps: Steps,
        inputs: Mapping[str, TensorType],
        name: str,
        vocabulary: int | None = None,
    ) -> None:
        """`inputs` are those that are not states; `vocabulary` is the number of different tokens.

        Raises: InputError if it is not a decoder.
        """
        known = [IDS, *following(0, 1)]
        if IDS not in inputs or inputs.keys() - {*known}:
            raise InputError(
                f"{name}: expected a decoder with inputs among {', '.join(known)}, whose caches "
                f"are states; got {', '.join(inputs)}; state its caches with --state"
            )
        if not steps.capacity:
            raise InputError(
                f"{name}: expected a decoder whose caches grow, got states of one shape; compile "
                "the model with a range of its past, such as --shape past_sequence_length=0..1023"
            )
        self._steps, self._inputs, self._name = steps, dict(inputs), name
        self._vocabulary = vocabulary
        extent = inputs[IDS].shape[-1]
        self._least, self._most = _ends(extent)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._steps.length

    @property
    def capacity(self) -> int:
        """The most tokens of a text."""
        return self._steps.capacity + 1

    def reset(self) -> None:
        """A new text begins."""
        self._steps.reset()

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float [words]: the logits of the token after these, which come after those so far.

        More tokens than a call may have are given in several calls. Raises: as `check`.
        """
        self.check(tokens, self.length)
        found = np.empty(0)
        for begin in range(0, len(tokens), self._most):
            found = self._call(tokens[begin : begin + self._most])
        return found

    def check(self, tokens: Sequence[int], held: int = 0) -> None:
        """Raises: InputError for no tokens, more than there is space for behind `held` ones, or a
        number that the bundle cannot take."""
        if not tokens:
            raise InputError(f"{self._name}: expected at least one token, got none; give a prompt")
        if held + len(tokens) > self.capacity:
            raise InputError(
                f"{self._name}: expected a text of at most {self.capacity} tokens, got "
                f"{held + len(tokens)}; compile the model with a larger range of its past"
            )
        end = self._vocabulary
        if end is not None and not 0 <= min(tokens) <= max(tokens) < end:
            wrong = next(token for token in tokens if not 0 <= token < end)
            raise InputError(
                f"{self._name}: expected tokens from 0 to {end - 1}, got {wrong}; use this "
                "model's tokenizer"
            )

    def _call(self, tokens: Sequence[int]) -> np.ndarray:
        if len(tokens) < self._least:
            raise InputError(
                f"{self._name}: expected calls of at least {self._least} tokens, got "
                f"{len(tokens)}; compile the model with a range of lengths from 1"
            )
        given = {IDS: np.array([tokens])} | following(self.length, len(tokens))
        feeds = {name: given[name].astype(kind.dtype.numpy) for name, kind in self._inputs.items()}
        outputs = self._steps.run(feeds)
        if _LOGITS not in outputs:
            raise InputError(
                f"{self._name}: expected an output {_LOGITS}, got {', '.join(outputs)}; name it so"
            )
        return outputs[_LOGITS][0, -1]


def _ends(extent: int) -> tuple[int, int]:
    """The fewest and the most tokens of a call."""
    if isinstance(extent, Dim):
        return extent.least, extent.most
    return extent, extent
