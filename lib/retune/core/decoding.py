"""Inputs of decoders that follow from the tokens of a call, by the names that exporters give them.

Read `following`. Who calls a decoder, or draws inputs for it, asks here: a mask of random numbers,
or positions that say nothing of the cache, are inputs that no text has.
"""

import numpy as np

IDS = "input_ids"
"""The input of tokens, int [batch, sequence]."""


def following(held: int, count: int, batch: int = 1) -> dict[str, np.ndarray]:
    """The inputs of a call with `count` tokens in each row, behind `held` ones, by name.

    No token is masked out, and each position is one more than the one before.
    """
    positions = np.arange(held, held + count)
    return {
        "attention_mask": np.ones((batch, held + count), np.int64),
        "position_ids": np.tile(positions, (batch, 1)),
        "cache_position": positions,
    }
