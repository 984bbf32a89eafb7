"""Which host steps some sample has reached: one that made no element was compared with nothing."""

from collections.abc import Mapping

import numpy as np

from retune.bundle.runtime.module import Module


class Reach:
    """A module whose runs are watched; calling it runs it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._seen: dict[str, bool] = {
            f"{step.label} ({step.opened.title})": False for step in module.plan.hosts
        }

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """As `Module.run`."""
        if not self._seen:
            return self._module.run(inputs)
        outputs, runs = self._module.observe(inputs)
        for name, run in zip(self._seen, runs, strict=True):
            self._seen[name] |= all(array.size for array in run.outputs)
        return outputs

    def unseen(self) -> list[str]:
        """Labels of the steps some of whose outputs had no elements in any run."""
        return [name for name, seen in self._seen.items() if not seen]
