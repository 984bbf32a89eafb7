"""Other forms of a stage: algorithms that compute the same, by stages of their own.

A form says what is computed, not in which order. It is not a primitive, and knows no schedule. It
is a function (program, block, sizes) -> (program, names of the stages that it made), which raises
ScheduleError for a block that has no such form. `Schedule.restate` applies one by its name, so that
a trace can state it.
"""

from collections.abc import Callable, Mapping, Sequence

from retune.core.errors import ScheduleError
from retune.ir.stmt import Program
from retune.schedule.attention import attention
from retune.schedule.flattened import flattened
from retune.schedule.grouped import grouped
from retune.schedule.joined import joined
from retune.schedule.lengthened import lengthened
from retune.schedule.packed import packed
from retune.schedule.panels import panels
from retune.schedule.strips import strips
from retune.schedule.unrounded import unrounded
from retune.schedule.winograd import winograd

Form = Callable[[Program, str, Sequence[int]], tuple[Program, list[str]]]

FORMS: Mapping[str, Form] = {
    "winograd": winograd,
    "words": packed,
    "panels": panels,
    "flattened": flattened,
    "grouped": grouped,
    "joined": joined,
    "lengthened": lengthened,
    "strips": strips,
    "unrounded": unrounded,
    "attention": attention,
}
"""All of them, by the names that traces have for them."""


def restate(
    program: Program, block: str, form: str, sizes: Sequence[int]
) -> tuple[Program, list[str]]:
    """See Schedule.restate. The program, and the names of the stages before the block."""
    if form not in FORMS:
        raise ScheduleError(
            f"restate({block}): expected one of the forms {', '.join(FORMS)}, got {form!r}"
        )
    return FORMS[form](program, block, sizes)
