"""The loop over calls: a prompt, then token after token."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from retune.core.errors import InputError
from retune.language.decoder import Decoder
from retune.language.sampling import Sampler, Sampling

EndedBy = Literal["", "count", "token", "capacity"]
"""Why there are no more tokens: there are as many as were asked for, a token ended the text, or the
decoder had no more space; '' before the end."""


@dataclass(slots=True)
class Generation:
    """The tokens that follow a prompt, one for each step of an iteration, and its times.

    It ends after `count` tokens, at one of `ends`, which is not among them, or where the decoder
    has no more space; `ended_by` says which.
    """

    decoder: Decoder
    prompt: Sequence[int]
    count: int
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list[int])
    """Those so far."""
    prefill_s: float = 0.0
    """Seconds of the calls with the prompt."""
    decode_s: float = 0.0
    """Seconds of the calls with a token each."""
    decoded: int = 0
    """Such calls."""
    ended_by: EndedBy = ""

    def __post_init__(self) -> None:
        """Raises: InputError for a count below 1, and for a prompt that has no tokens, or more than
        the decoder has space for."""
        if self.count < 1:
            raise InputError(f"tokens: expected a count from 1, got {self.count}")
        self.decoder.check(self.prompt)

    def __iter__(self) -> Iterator[int]:
        decoder, sampler = self.decoder, Sampler(self.sampling)
        decoder.reset()
        begin = time.perf_counter()
        logits = decoder.logits(self.prompt)
        self.prefill_s = time.perf_counter() - begin
        while True:
            token = sampler.pick(logits)
            if token in self.ends:
                self.ended_by = "token"
                return
            self.tokens.append(token)
            yield token
            if len(self.tokens) == self.count or decoder.length == decoder.capacity:
                self.ended_by = "count" if len(self.tokens) == self.count else "capacity"
                return
            begin = time.perf_counter()
            logits = decoder.logits([token])
            self.decode_s += time.perf_counter() - begin
            self.decoded += 1

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt per second."""
        return len(self.prompt) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens after the first one per second; 0 if there are none."""
        return self.decoded / self.decode_s if self.decode_s else 0.0
