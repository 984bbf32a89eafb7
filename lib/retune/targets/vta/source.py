"""A candidate for an accelerator: a packed layer and its decisions, not lowered yet."""

from dataclasses import dataclass
from functools import cached_property

from retune.codegen.source import ProgramSource
from retune.core.keys import content_key
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.template import Decisions
from retune.targets.vta.workload import Convolution


@dataclass(frozen=True, kw_only=True)
class PackedSource(ProgramSource):
    """What a Runner for an accelerator gets: it makes a module of it, where it measures."""

    work: Convolution
    decisions: Decisions
    config: VtaConfig

    @cached_property
    def key(self) -> str:
        """Content key of layer, decisions and accelerator: equal keys run the same module."""
        decided = {name: tuple(values) for name, values in self.decisions.items()}
        return content_key(self.work, decided, self.config)


def packed_source(work: Convolution, decisions: Decisions, config: VtaConfig) -> PackedSource:
    """The candidate of these decisions; it has no kernels of its own."""
    return PackedSource(
        kernels=(), launches=(), buffers=(), work=work, decisions=decisions, config=config
    )
