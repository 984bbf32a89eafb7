"""A decoder from a bundle: calls in a row that remember keys and values."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retune.bundle.runtime.module import Module
from retune.core.dims import Dim, sizes_of
from retune.core.errors import InputError
from retune.core.states import states_among
from retune.language.decoder import Decoder, Steps


def decoder_of(bundle: Module | Path | str, device: str | None = None) -> Decoder:
    """A new sequence of calls of the bundle as a decoder; several of a module share its weights.

    Raises: InputError if the bundle is no decoder, or cannot run on the device. RecordError if it
    is damaged.
    """
    module = bundle if isinstance(bundle, Module) else Module.load(bundle, device)
    states = {state.input for state in module.plan.states}
    steps: Steps
    if states:
        steps = module.session()
    else:
        grown = Grown(module)
        states, steps = {*grown.caches}, grown
    inputs = {name: kind for name, kind in module.inputs.items() if name not in states}
    return Decoder(steps, inputs, f"bundle {module.plan.name}")


class Grown:
    """Calls of a module whose caches are inputs and outputs: they pass through the host."""

    def __init__(self, module: Module) -> None:
        """Raises: InputError if no cache grows by calls, or has no range to do so."""
        self._module = module
        found = states_among((), list(module.inputs), list(module.outputs))
        self._pairs = {state.input: state.output for state, _ in found}
        shapes = {name: module.inputs[name].shape for name in self._pairs}
        axes = {
            name: [a for a, e in enumerate(s) if isinstance(e, Dim)] for name, s in shapes.items()
        }
        if not shapes or any(len(own) != 1 for own in axes.values()):
            raise InputError(
                f"bundle {module.plan.name}: expected caches of one open axis, such as "
                "past_key_values.0.key; compile the model with ranges of them alone, such as "
                "--shape batch=1 --shape past=0..1023"
            )
        self._axes = {name: axis for name, (axis,) in axes.items()}
        (self._size,) = {size for shape in shapes.values() for size in sizes_of(shape)}
        self.caches: dict[str, np.ndarray] = {}
        self.reset()

    @property
    def length(self) -> int:
        """Elements of the caches along the axis that grows."""
        name, axis = next(iter(self._axes.items()))
        return self.caches[name].shape[axis]

    @property
    def capacity(self) -> int:
        """The greatest length before a call."""
        return self._size.most

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are no caches; the caches are those after this call."""
        outputs = self._module.run({**inputs, **self.caches})
        self.caches = {name: outputs.pop(output) for name, output in self._pairs.items()}
        return outputs

    def reset(self) -> None:
        """The caches are empty."""
        kinds = {name: self._module.inputs[name].at({self._size.name: 0}) for name in self._pairs}
        self.caches = {name: np.zeros(kind.shape, kind.dtype.numpy) for name, kind in kinds.items()}
