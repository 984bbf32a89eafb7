"""Reductions that rules restate before they tile them, so that an instruction takes their steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from retune.core.dims import is_fixed
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import loads
from retune.ir.stmt import Block
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.fusion import inline_elementwise, padding_of


@dataclass(frozen=True, slots=True)
class Restatement:
    """A form of `schedule.forms`, and its sizes."""

    name: str
    sizes: tuple[int, ...]

    @property
    def label(self) -> str:
        """Its part of the name of a sketch."""
        return "laid" if self.name == "words" else f"{self.name}{self.sizes[0]}"


def lays_columns(forms: Iterable[Restatement]) -> bool:
    """Whether its last steps are packs, and the elements of each."""
    return any(form.name == "words" for form in forms)


def strip_sizes(stage: Accesses, whole: int) -> Iterator[tuple[int, int]]:
    """Elements of a pixel, and of a window's row, for `schedule.strips` of a reduction.

    Neighbouring windows are multiples of `whole` elements apart. The fewest elements come first;
    none where the last steps are not channels of several pixels.
    """
    sizes = [evaluate_int(loop.extent) for loop in stage.steps[-2:]]
    if len(sizes) < 2 or not all(map(is_fixed, sizes)) or sizes[0] < 2:
        return
    taps, channels = sizes
    strides = {int(o.step(loop.var)) for o in stage.operands for loop in stage.results[-2:-1]}
    for pixel in range(channels, channels + whole):
        if all(pixel * stride % whole == 0 for stride in strides):
            yield pixel, pixel * (taps - 1) + channels


def whole_steps(steps: int, entry: Intrinsic) -> int:
    """The fewest steps, at least so many, of which the instructions that they take have as many
    packs each."""
    times = -(-steps // entry.k)
    return -(-steps // (times * entry.pack)) * times * entry.pack


def restate(
    s: Schedule, name: str, forms: Sequence[Restatement], *, masks: bool = False
) -> list[str]:
    """The reduction in these forms, one after the other; the stages that lay its data out.

    What is element-wise is written into its readers. Padding becomes a mask in the stage that
    copies the data, as for strips, or in the reduction itself if that `masks`; else it stays, as it
    does where columns are laid out.
    Raises: ScheduleError if it has no such form.
    """
    named, padding = {form.name for form in forms}, padding_of(s.program, s.block(name))
    laid: list[str] = []
    if not lays_columns(forms):  # which then lie side by side no more
        if "strips" not in named and (masks or "lengthened" in named):
            _inline(s, padding)
        inline_elementwise(s)
    for form in forms:
        laid += s.restate(name, form.name, form.sizes)
    for made in laid:
        if all(load.buffer.scope == "constant" for load in loads(s.block(made).value)):
            s.precompute(made)
    if "strips" in named:
        _inline(s, padding)
    read = {load.buffer for load in loads(s.block(name).value)}
    laid = [made for made in laid if s.block(made).buffer in read]
    inline_elementwise(s, kept=laid)
    return laid


def _inline(s: Schedule, stages: Iterable[Block]) -> None:
    for stage in stages:
        s.compute_inline(stage.name)
