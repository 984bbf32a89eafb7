"""Sampling of the next token from logits."""

from dataclasses import dataclass

import numpy as np

from retune.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which tokens may follow, and how one of them is drawn."""

    temperature: float = 0.0
    """Divides logits; at 0 the token of the largest logit follows (greedy)."""
    top_k: int = 0
    """Only so many tokens of the largest logits may follow; 0: all."""
    top_p: float = 1.0
    """Only the likeliest tokens may follow, as many as have this probability together."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: InputError for a value without a meaning."""
        expected = {
            "temperature": (self.temperature >= 0, "a number from 0 (greedy)"),
            "top_k": (self.top_k >= 0, "a count, or 0 for all tokens"),
            "top_p": (0 < self.top_p <= 1, "a probability above 0, up to 1"),
            "seed": (self.seed >= 0, "an integer from 0"),
        }
        for name, (fits, what) in expected.items():
            if not fits:
                raise InputError(f"{name}: expected {what}, got {getattr(self, name)}")


class Sampler:
    """Draws tokens; equal settings and logits give equal tokens."""

    def __init__(self, settings: Sampling) -> None:
        self._settings = settings
        self._rng = np.random.default_rng(settings.seed)

    def pick(self, logits: np.ndarray) -> int:
        """The next token, of logits [words]. Of equal ones the first counts as the largest."""
        own = self._settings
        if own.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if own.top_k:
            order = order[: own.top_k]
        scaled = (logits[order].astype(np.float64) - logits[order[0]]) / own.temperature
        chances = np.exp(scaled)
        chances /= chances.sum()
        kept = int(np.searchsorted(chances.cumsum(), own.top_p)) + 1
        chances = chances[:kept] / chances[:kept].sum()
        return int(self._rng.choice(order[:kept], p=chances))
