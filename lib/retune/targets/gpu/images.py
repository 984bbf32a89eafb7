"""Constant operands that are read through images, where a device reads them faster so.

What an item reads of them at once are the lanes of its channels, four floats: a texel. Other
operands stay arrays: an image over a part of memory that kernels write to is an extension, and
drivers of Mali GPUs are known to get it wrong (TensorFlow Lite leaves it alone on Bifrost and
Midgard, `CanUseSubBufferForImage2d`). Read `may_be_images`.
"""

from math import prod

from retune.core.dtypes import FLOAT32
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, const, loads, variables
from retune.ir.stmt import Program, paths
from retune.schedule.access import Accesses, AffineAccess
from retune.schedule.schedule import Schedule

TEXEL = 4
"""Lanes of an item whose operands are texels."""
_ROW = 1024
"""Texels of a row: devices with images have rows of 2048 at least, and then 2048 of them.

Source: OpenCL 3.0 API, table 5, CL_DEVICE_IMAGE2D_MAX_WIDTH of the embedded profile.
"""


def may_be_images(stage: Accesses, lanes: int, spec: DeviceSpec) -> bool:
    """Whether images are an alternative on the device, for a stage of so many lanes."""
    return spec.image_reads == 1 and lanes == TEXEL and bool(_constants(stage))


def read_through_images(s: Schedule, stage: Accesses, spec: DeviceSpec) -> None:
    """The constant operands of a stage are images; where their channels do not lie side by side,
    in the order of their reads.

    Raises: ScheduleError where there are none, or one is read at several positions.
    """
    constants = _constants(stage)
    if not constants:
        raise ScheduleError(f"{stage.block.name}: expected a constant operand of float32")
    for operand in constants:
        name = operand.load.buffer.name
        if not _lies_in_texels(stage, operand):
            s.pack(name)
        s.read_as_image(name, min(_ROW, 1 << (max(1, spec.image_width).bit_length() - 1)))


def image_elements(program: Program, name: str) -> Expr:
    """Elements of a constant as its image has them: in the order of their reads, neighbours of
    tiles that overlap may be there twice."""
    if name in program.packed:
        for block, path in paths(program.body):
            for load in loads(block.value):
                if load.buffer.name == name and load.buffer.scope == "constant":
                    used = {v for index in load.indices for v in variables(index)}
                    return prod((n.extent for n in path if n.var in used), start=const(1))
    buffers = {b.name: b for b in (*program.inputs, *program.scratch)}
    return prod(buffers[name].shape, start=const(1))


def _constants(stage: Accesses) -> list[AffineAccess]:
    """One read of each."""
    found = {o.load.buffer: o for o in stage.operands if o.constant}
    return [o for buffer, o in found.items() if buffer.dtype == FLOAT32]


def _lies_in_texels(stage: Accesses, operand: AffineAccess) -> bool:
    """Whether neighbouring channels are neighbours in memory, from a multiple of four on."""
    last = evaluate_int(operand.load.buffer.shape[-1])
    return stage.channel in operand.last and last % TEXEL == 0
