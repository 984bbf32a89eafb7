"""Tuners by the name that the command line takes."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from retune.core.errors import LookupFailed
from retune.core.keys import content_key
from retune.search.tuners.annealing import AnnealingTuner
from retune.search.tuners.baselines import GridTuner, RandomTuner
from retune.search.tuners.evolutionary import EvolutionaryTuner
from retune.search.tuners.genetic import GeneticTuner
from retune.search.tuners.protocol import Setting, Tuner

TUNERS: Mapping[str, Callable[[Setting], Tuner]] = {
    "evolutionary": EvolutionaryTuner,
    "xgb": AnnealingTuner,
    "ga": GeneticTuner,
    "random": RandomTuner,
    "grid": GridTuner,
}


def check_tuner(name: str) -> None:
    """Raises: LookupFailed naming the tuners there are."""
    if name not in TUNERS:
        raise LookupFailed(f"tuner {name!r} is not known; choose one of {', '.join(TUNERS)}")


def make_tuner(name: str, setting: Setting, task_key: str) -> Tuner:
    """The tuner of that name; its draws depend on the setting and the task.

    Raises: LookupFailed naming the tuners there are.
    """
    check_tuner(name)
    own_seed = int(content_key(setting.seed, task_key)[:15], 16)
    return TUNERS[name](replace(setting, seed=own_seed))
