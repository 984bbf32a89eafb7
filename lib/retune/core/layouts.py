"""Activation layouts: how the values between kernels lie in memory, by name, and a plan of them.

Read `ActivationLayout`, then `LayoutAssignment`. All of this is plain data that stages store;
`retune.search.layout` finds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType, get_args

ActivationLayout = NewType("ActivationLayout", str)
"""How an activation of shape [batch, height, width, channels] lies: `NHWC`, all channels of a pixel
side by side; `NHWC+16`, and room for 16 more behind them; `NCHW`; `NCHW16c`, blocks of 16 channels.

A network imported for `--layout NCHW` has tensors of that order, which lie as they are written, as
all tensors of other ranks do: `NHWC` stands for that, too."""

NHWC = ActivationLayout("NHWC")
BLOCKED = ActivationLayout("NCHW16c")
"""The blocked layout that can be asked for by name."""
MEASURED = "auto"
Layout = Literal["auto", "NHWC", "NCHW", "NCHW16c"]
"""What users choose from; `auto` stands for those that take the least time, by measurements."""
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SOLVER_REMOVED = (
    "there is one solver, which finds the layouts that take the least time; leave the option out"
)
"""What is said where someone names a solver, as earlier versions had several."""


@dataclass(frozen=True, slots=True, order=True)
class IOLayouts:
    """The layouts of a kernel's inputs and outputs."""

    input: ActivationLayout = NHWC
    """Of its first activation."""
    output: ActivationLayout = NHWC
    """Of what it makes, and of all other activations that it reads: residual sums, say."""

    @property
    def is_nhwc(self) -> bool:
        """Whether both are NHWC, of any row pitch."""
        return all(layout.partition("+")[0] == NHWC for layout in (self.input, self.output))

    def __str__(self) -> str:
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class KeptLayouts:
    """The layouts in which an activation is kept."""

    made: ActivationLayout = NHWC
    """In which its kernel leaves it."""
    copies: tuple[ActivationLayout, ...] = ()
    """Those that it is copied to, in order of their names."""

    @property
    def all(self) -> tuple[ActivationLayout, ...]:
        """Made or copied."""
        return (self.made, *self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAssignment:
    """The layouts of a network; whatever it does not name is NHWC."""

    activations: Mapping[str, KeptLayouts] = field(default_factory=dict[str, KeptLayouts])
    kernels: Mapping[str, IOLayouts] = field(default_factory=dict[str, IOLayouts])
    """By the names of their groups."""

    def of_kernel(self, group: str) -> IOLayouts:
        """The layouts of a group's kernel."""
        return self.kernels.get(group, IOLayouts())


ALL_NHWC = LayoutAssignment()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    """Layouts of a network, and what its kernels and copies should take, in microseconds."""

    layouts: LayoutAssignment = ALL_NHWC
    kernels_us: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of each group with a kernel, in the network's order; 0 where it is not known."""
    nhwc_us: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same with all activations in NHWC."""
    copies_us: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of each activation that is copied, all of its copies."""
