"""Words of bytes: reductions whose last steps an instruction of the device does, four at a time."""

from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic, Match, Way
from retune.intrinsics.dot4 import DOT4, WIDTH
from retune.intrinsics.matching import matching_block
from retune.ir.evaluate import evaluate_int
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule


def products_of_words(stage: Accesses, entry: Intrinsic) -> Match | None:
    """The stage as products of bytes that an intrinsic adds up by words along its last steps.

    None where the bytes of a word do not lie side by side. Constants are packed: theirs may lie
    anywhere.
    """
    if not stage.steps or evaluate_int(stage.steps[-1].extent) % WIDTH:
        return None
    along = stage.steps[-1].var
    found = matching_block(entry, stage.block, [along] * len(entry.axes))
    apart = any(
        operand.last != frozenset({along}) or not operand.adjacent or not operand.rows_of(WIDTH)
        for operand in stage.operands
        if not operand.constant
    )
    return found if isinstance(found, Match) and not apart else None


def word_way(stage: Accesses, spec: DeviceSpec, lanes: int) -> Way | None:
    """How the device adds up words along the last of the stage's steps, in so many lanes.

    None where it has no instruction for that, or the stage does not come in words.
    """
    found = products_of_words(stage, DOT4)
    if found is None:
        return None
    way = DOT4.way(found.shape(lanes), spec.instructions)
    return None if way is DOT4.ways[-1] else way


def by_words(s: Schedule, name: str) -> None:
    """The stage restated by words; its constants are laid out for them at compile time."""
    for made in s.restate(name, "words", [WIDTH]):
        s.precompute(made)


def split_word(s: Schedule, reduce: list[str]) -> str:
    """The loop over the bytes of a word, off the last of the reduce loops, which then steps words.

    Raises: ScheduleError where words do not divide it.
    """
    reduce[-1], word = s.split(reduce[-1], [WIDTH])
    return word
