"""Caches of keys and values: [batch, heads, capacity, width], of which the first tokens are filled.

How many they are may be known only when the network runs. New tokens are put behind them.
"""

from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import INT32
from retune.frontend.onnx.ops.attention import appended
from retune.frontend.onnx.ops.registry import Emitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Where the tokens of one step go."""

    length: int
    """New tokens."""
    capacity: int
    """Tokens for which there is space after the step."""
    before: str = ""
    """int32 [batch, 1] or [1, 1]: how many tokens came before; '' if `held` says it."""
    held: int | None = None
    """Tokens that came before, of a cache that grows by the new ones; None: it does not."""

    def positions(self, emit: Emitter) -> str:
        """int32 [batch, length] or [1, length]: the position of each new token."""
        steps = emit.counted(
            "steps", (1, self.length), (0, 1), 0 if self.held is None else self.held, INT32
        )
        return emit.temp("add", self.before, steps, label="positions") if self.before else steps

    def stored(self, emit: Emitter, past: str, new: str) -> str:
        """The cache after the step, which held `past` ('' for nothing)."""
        if self.held is not None:
            return appended(emit, past, new)
        held = emit.shape(past)[2] if past else 0
        if self.before:
            return self._put(emit, _wide(emit, past, self.capacity), new)
        if held > self.length:
            new = emit.temp(
                "concat", new, emit.part(past, 2, self.length, held - self.length, "rest"), axis=2
            )
        return _wide(emit, new, self.capacity)

    def _put(self, emit: Emitter, past: str, new: str) -> str:
        """The cache of full length with the new tokens instead of others."""
        batch, heads, length, width = emit.shape(new)
        slots = emit.counted("slots", (1, self.capacity), (0, 1), dtype=INT32)
        since = emit.temp("subtract", slots, self.before, label="since")
        zero, last = (emit.stored("n", np.asarray(n, np.int32)) for n in (0, length - 1))
        if length == 1:
            inside = emit.temp("equal", since, zero, label="inside")
        else:
            not_before = emit.temp("greater_equal", since, zero)
            inside = emit.temp("logical_and", not_before, emit.temp("less_equal", since, last))
            near = emit.temp("minimum", emit.temp("maximum", since, zero), last, label="near")
            starts = emit.counted("starts", (batch, 1), (length, 0), dtype=INT32)
            tokens = emit.temp("transpose", new, label="tokens", perm=(0, 2, 1, 3))
            rows = emit.reshaped(tokens, (batch * length, heads, width))
            found = emit.temp("gather", rows, emit.temp("add", near, starts), axis=0)
            new = emit.temp("transpose", found, label="new", perm=(0, 2, 1, 3))
        rows = emit.shape(inside)[0]
        shaped = emit.reshaped(inside, (rows, 1, self.capacity, 1))
        return emit.temp("where", shaped, new, past, label="present")

    def all_seen(self, window: int) -> bool:
        """Whether new tokens see all keys."""
        if self.held is None:
            return not self.before and self.capacity == 1
        return self.length == 1 and not window

    def seen(self, emit: Emitter, *, causal: bool = True, window: int = 0) -> str:
        """The condition [batch or 1, 1, length or 1, capacity] that keys are seen by new tokens.

        They are filled, not after the token if `causal`, and among the `window` (0: all) last ones.
        """
        keys = emit.counted("keys", (self.capacity,), (1,), dtype=INT32)
        positions = self.positions(emit)
        if not causal:
            positions = emit.part(positions, 1, self.length - 1, 1, "last")
        rows, length = emit.shape(positions)
        positions = emit.reshaped(positions, (rows, 1, length, 1))
        seen = emit.temp("less_equal", keys, positions, label="past")
        if not window:
            return seen
        reach = emit.temp("add", keys, emit.stored("window", np.asarray(window, np.int32)))
        return emit.temp("logical_and", seen, emit.temp("greater", reach, positions, label="near"))


def _wide(emit: Emitter, value: str, capacity: int) -> str:
    """The tokens with zeros behind them."""
    missing = capacity - emit.shape(value)[2]
    if not missing:
        return value
    pads = (0, 0, 0, 0, 0, 0, missing, 0)
    return emit.temp("pad", value, label="wide", pads=pads, value=0.0)
