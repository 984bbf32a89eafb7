"""Matrix instructions that a device has for a reduction: rules ask for a shape, not for a name."""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.core.dims import is_fixed
from retune.core.dtypes import DType
from retune.core.target import DeviceSpec
from retune.intrinsics import Implementation, Intrinsic, Match, Residence, intrinsics
from retune.intrinsics.matching import fits_parts, matching_block, pack_index
from retune.ir.evaluate import evaluate_int
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Instruction:
    """An intrinsic, and the implementation by which a device computes it."""

    entry: Intrinsic
    implementation: Implementation


def find_instruction(
    stage: Accesses,
    spec: DeviceSpec,
    residence: Residence,
    lanes: int = 1,
) -> Instruction | None:
    """The first registered instruction of the device that adds up the stage's last steps.

    None where the device has none, or the stage does not come in packs.
    """
    return next(find_instructions(stage, spec, residence, lanes), None)


def find_instructions(
    stage: Accesses,
    spec: DeviceSpec,
    residence: Residence,
    lanes: int = 1,
) -> Iterator[Instruction]:
    """All such instructions, in the order of their registration."""
    for found in multiplying(stage, spec, residence, lanes):
        if _in_packs(stage, found.entry):
            yield found


def multiplying(
    stage: Accesses, spec: DeviceSpec, residence: Residence, lanes: int = 1
) -> Iterator[Instruction]:
    """The instructions of the device for what the stage adds up, wherever its operands lie.

    Those in vector lanes come by their time, and hold sums in parts of lanes if all sums fit.
    """
    found = list(_multiplying(stage, spec, residence, lanes))
    lane = residence == "vector lane"
    yield from sorted(found, key=lambda one: one.implementation.slots) if lane else found


def _multiplying(
    stage: Accesses, spec: DeviceSpec, residence: Residence, lanes: int
) -> Iterator[Instruction]:
    if not stage.steps:
        return
    along = stage.steps[-1].var
    for entry in intrinsics():
        if entry.residence != residence:
            continue
        found = matching_block(entry, stage.block, [along] * len(entry.axes))
        if isinstance(found, Match) and (not entry.most or fits_parts(found, stage.steps)):
            chosen = entry.implementation(found.signature(lanes), spec.instructions)
            if chosen is not entry.implementations[-1]:
                yield Instruction(entry, chosen)


def has_warps(spec: DeviceSpec) -> bool:
    """Whether the device has an instruction that the items of a warp execute together."""
    return any(
        entry.full_name(x) in spec.instructions
        for entry in intrinsics()
        if entry.warp is not None
        for x in entry.implementations
    )


def multiplied(spec: DeviceSpec) -> frozenset[DType]:
    """The element types that some instruction of the device multiplies, by probes, and that rules
    choose it for."""
    return frozenset(
        dtype
        for entry in intrinsics()
        for one in entry.implementations[:-1]
        if entry.full_name(one) in spec.instructions
        for signature in entry.signatures(one)
        for dtype in signature.dtypes
    )


def _in_packs(stage: Accesses, entry: Intrinsic) -> bool:
    """Whether the last steps come in packs of an intrinsic whose elements lie side by side.

    Constants are packed: theirs may lie anywhere.
    """
    last = stage.steps[-1]
    if not is_fixed(steps := evaluate_int(last.extent)) or steps % entry.pack:
        return False
    return all(
        pack_index(operand.load, last.var, entry.pack) is not None
        for operand in stage.operands
        if not operand.constant
    )


def in_packs(s: Schedule, name: str, pack: int) -> None:
    """The stage restated by packs; its constants are laid out for them at compile time."""
    for made in s.restate(name, "words", [pack]):
        s.precompute(made)


def split_pack(s: Schedule, reduce: list[str], pack: int) -> str:
    """The loop over the elements of a pack, off the last of the reduce loops, which then steps
    packs.

    Raises: ScheduleError where packs do not divide it.
    """
    reduce[-1], near = s.split(reduce[-1], [pack])
    return near
