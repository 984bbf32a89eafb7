"""Steps of a bundle that an accelerator runs: modules, executed and timed by its simulators.

Read `OffloadedStep`. Such a step stands where a host step stands, between launches: it reads and
makes values of the host's memory. What it computes is exact; how long it takes is counted in cycles
and follows from the module alone, whatever time its simulation takes here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from retune.core.dtypes import TensorType
from retune.core.errors import InputError, ModelError, RecordError
from retune.targets.vta.functional import execute
from retune.targets.vta.module import DramBuffer, VtaModule
from retune.targets.vta.timing import ModuleTiming, simulate

TITLE = "VTA (simulated)"
"""What its steps are called in profiles."""
_KEPT = 512
"""Steps that are kept ready."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OffloadedStep:
    """A module, ready to run; to those who run host steps it is one."""

    module: VtaModule

    @property
    def ops(self) -> tuple[str, ...]:
        """What it is called where host steps name their ops."""
        return (TITLE,)

    @property
    def title(self) -> str:
        """The same in one line for people."""
        return ", ".join(self.ops)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that it reads, in order."""
        return tuple(buffer.name for buffer in self.module.inputs)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of the inputs."""
        return tuple(buffer.dtype for buffer in self.module.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays that it makes, in order."""
        return tuple(buffer.name for buffer in self.module.outputs)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Of the outputs."""
        return tuple(_type(buffer) for buffer in self.module.outputs)

    @cached_property
    def timing(self) -> ModuleTiming:
        """Its course, the same for each run. Raises: ModelError if the module is not sound."""
        try:
            return simulate(self.module)
        except InputError as error:
            raise self._unsound(error) from error

    @property
    def seconds(self) -> float:
        """Simulated time of a run. Raises: ModelError if the module is not sound."""
        return 1e-6 * self.timing.time_us

    def run(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs, in arrays of their own. Raises: ModelError if the module is not sound."""
        given = dict(zip(self.inputs, arrays, strict=True))
        try:
            made = execute(self.module, given, self.timing.course)
        except InputError as error:
            raise self._unsound(error) from error
        return tuple(made[name] for name in self.outputs)

    def _unsound(self, error: InputError) -> ModelError:
        return ModelError(f"accelerator step {self.module.name}: {error}")


@lru_cache(maxsize=_KEPT)
def open_offloaded(content: bytes) -> OffloadedStep:
    """The step with these bytes. Raises: ModelError if they are not a module."""
    try:
        return OffloadedStep(module=VtaModule.from_bytes(content))
    except RecordError as error:
        raise ModelError(str(error)) from error


def _type(buffer: DramBuffer) -> TensorType:
    return TensorType(buffer.shape, buffer.dtype)
