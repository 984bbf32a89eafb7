"""retune: from a trained network to the fastest verified OpenCL bundle.

`retune.tune` tunes a tensor expression, `retune.tune_network` a whole network; both, and the names
listed in `__all__`, are imported when they are first used, so that `import retune` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retune.api import Tuned, measure, space_for, tune, tune_network
    from retune.schedule.schedule import Schedule
    from retune.targets.template import template

__all__ = ["Schedule", "Tuned", "measure", "space_for", "template", "tune", "tune_network"]

__version__ = "0.1.0"

_MODULES = {
    "Schedule": "retune.schedule.schedule",
    "Tuned": "retune.api",
    "measure": "retune.api",
    "space_for": "retune.api",
    "template": "retune.targets.template",
    "tune": "retune.api",
    "tune_network": "retune.api",
}
"""Where each public name lives."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'retune' has no attribute {name!r}")
    from retune.core.extras import explained

    with explained():
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
