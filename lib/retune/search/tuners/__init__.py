"""Tuners: who proposes the next candidates of one task. Open first: `protocol.py`."""

from retune.search.tuners.protocol import Scorer, Setting, Tuner
from retune.search.tuners.registry import TUNERS, check_tuner, make_tuner

__all__ = ["TUNERS", "Scorer", "Setting", "Tuner", "check_tuner", "make_tuner"]
