"""The functional simulator: bit-exact, unit by unit (see `units`), each in whole numpy arrays.

Read `execute`. A stream is refused, with the number of the instruction, if it leaves a memory or a
buffer, reads what nothing wrote, takes a micro-op that there is not, writes a sum that is still in
the pipe, or touches what another queue may be at: order counts only if a
token guarantees it, even where these queues would have kept it.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from retune.core.errors import InputError
from retune.targets.vta.copies import Copies
from retune.targets.vta.isa import (
    ALU,
    ALU_OPS,
    FINISH,
    GEMM,
    LOAD,
    MEMORY_TYPES,
    QUEUES,
    STORE,
    decode_uops,
    describe,
)
from retune.targets.vta.module import UOPS, VtaModule, element_bytes
from retune.targets.vta.products import (
    Alu,
    Gemm,
    Region,
    first_hazard,
    indices,
    plan_alu,
    plan_gemm,
    plan_reset,
)
from retune.targets.vta.queues import Course
from retune.targets.vta.timing import simulate
from retune.targets.vta.units import Unit, units_of

_LOAD, _COMPUTE, _STORE = range(3)

MOST_OPERATIONS = 1 << 23
"""Micro-ops times iterations of an instruction: more would take this program's memory."""


def execute(
    module: VtaModule, arrays: Mapping[str, np.ndarray], course: Course | None = None
) -> dict[str, np.ndarray]:
    """The outputs of a module by name, in the shapes of its buffers.

    `course` is that of `timing.simulate`, where the caller has it already.

    Raises: InputError for an array that is missing, unknown, or of another type or size, and for a
    stream that is not sound.
    """
    return _Machine(module, arrays, course or simulate(module).course).run()


class _Chip:
    """A memory on chip, and who touched its elements last."""

    def __init__(self, memory: str, depth: int, shape: tuple[int, ...], dtype: str) -> None:
        self.memory = memory
        self.data = np.zeros((depth, *shape), dtype)
        self.writer = _LOAD if memory in ("inp", "wgt") else _COMPUTE
        """The queue that writes it; one alone does."""
        self.reader = _STORE if memory == "out" else _COMPUTE
        self.wrote = np.zeros(depth, np.int64)
        """Of each element, the number in its queue of the instruction that wrote it, from 1; 0:
        none."""
        self.read = np.zeros(depth, np.int64)
        """The same of the last one that read it."""


class _Machine:
    """The accelerator while it executes a module."""

    def __init__(self, module: VtaModule, arrays: Mapping[str, np.ndarray], course: Course) -> None:
        self.module = module
        self._course = course
        self._copies = Copies.of(module)
        self._units = units_of(module.instructions, self._copies, course)
        config = module.config
        tensor, matrix = (config.batch, config.block), (config.block, config.block)
        # Bytes are kept as float32, which products of matrices take; weights [C in, C out].
        self.inp = _Chip("inp", config.depth("inp"), tensor, "float32")
        self.wgt = _Chip("wgt", config.depth("wgt"), matrix, "float32")
        self.acc = _Chip("acc", config.depth("acc"), tensor, "int32")
        self.out = _Chip("out", config.depth("out"), tensor, "int8")
        self.uop = _Chip("uop", config.depth("uop"), (), "uint32")
        on_chip = {c.memory: c for c in (self.inp, self.wgt, self.acc, self.out, self.uop)}
        self._chips = [on_chip[kind.chip] for kind in MEMORY_TYPES]
        holding = [self._chips[b.memory_type] for b in module.buffers]
        self._dram = _sources(module, _given(module, arrays), holding)
        """Of each buffer, with an element of zeros behind the others."""
        columns = (module.instructions[name].tolist() for name in ("alu_op", "use_imm", "imm"))
        self._operations: list[tuple[int, int, int]] = list(zip(*columns, strict=True))
        self._stored: list[tuple[int, np.ndarray]] = []
        self._rows: dict[bytes, np.ndarray] = {}
        self._plans: dict[tuple[int, bytes], Gemm | Alu] = {}
        self._uops_loaded = 0
        self._narrowed: dict[tuple[int, int] | bytes, tuple[Region, int]] = {}
        """Sums whose low bytes the output buffer ought to have, and who made them last."""

    def run(self) -> dict[str, np.ndarray]:
        for unit in self._units.units:
            if unit.opcode == LOAD:
                self._load(unit)
            elif unit.opcode == STORE:
                self._store(unit)
            elif unit.opcode == FINISH:
                self._finish(unit)
            else:
                self._compute(unit)
        self._check_outputs()
        return {
            b.name: self._dram[number][:-1].reshape(b.shape)
            for number, b in enumerate(self.module.buffers)
            if b.written
        }

    # -- copies ------------------------------------------------------------------------------

    def _load(self, unit: Unit) -> None:
        chip = self._chips[unit.memory]
        region = slice(unit.begin, unit.end)
        self._may_write(unit, chip, region)
        if chip is self.uop:
            self._uops_loaded += 1
        elif chip is self.acc:
            self._narrow()
        if unit.buffer < 0:
            chip.data[region] = 0
            return
        # What is outside is taken from the last row of the source, which is zero.
        source, rows = self._dram[unit.buffer], self._rows_of(unit) + unit.row
        source.take(rows, axis=0, out=chip.data[region], mode="clip")

    def _store(self, unit: Unit) -> None:
        if unit.buffer < 0:
            return
        self._narrow()
        region = slice(unit.begin, unit.end)
        self._was_written(unit, self.out, region)
        self._may_read(unit, self.out, region)
        rows = self._rows_of(unit) + unit.row
        self._dram[unit.buffer][rows] = self.out.data[region]
        self._stored.append((unit.buffer, rows))

    def _narrow(self) -> None:
        """The output buffer has the low bytes of all sums that were made since."""
        for region, last in self._narrowed.values():
            self.out.data[region] = self.acc.data[region]
            self.out.wrote[region] = last
        self._narrowed.clear()

    def _rows_of(self, unit: Unit) -> np.ndarray:
        """Elements in DRAM of a copy, from its first one."""
        if unit.alike not in self._rows:
            self._rows[unit.alike] = self._copies.rows(self._units.of(unit))
        return self._rows[unit.alike]

    # -- compute instructions ----------------------------------------------------------------

    def _compute(self, unit: Unit) -> None:
        plan = self._plan(unit)
        self._is_free(unit, self.out, plan.writes)
        acc = self.acc.data
        if isinstance(plan, Alu):
            plan.run(self._steps(unit), acc)
        elif plan.groups:
            version = self._may_read(unit, self.inp, plan.inputs)
            self._may_read(unit, self.wgt, plan.weights)
            plan.run(self.inp.data, self.wgt.data, acc, version)
        else:
            acc[plan.writes] = 0
        region = plan.writes
        key = (region.start, region.stop) if isinstance(region, slice) else region.tobytes()
        self._narrowed.pop(key, None)  # in the order of who made them
        self._narrowed[key] = region, unit.last

    def _steps(self, unit: Unit) -> list[tuple[str, int | None]]:
        """What an ALU unit does, one operation after the other."""
        found: list[tuple[str, int | None]] = []
        for number in self._units.of(unit).tolist():
            op, used, imm = self._operations[number]
            if op >= len(ALU_OPS):
                self._refuse(number, f"no operation {op} of the ALU")
            found.append((ALU_OPS[op], imm if used else None))
        return found

    def _plan(self, unit: Unit) -> Gemm | Alu:
        """What the instruction does, worked out once for those that are alike."""
        key = (self._uops_loaded, unit.alike)
        if key not in self._plans:
            plan = self._planned(self._first(unit))
            self._first_time(unit, plan)
            self._plans[key] = plan
        return self._plans[key]

    def _first_time(self, unit: Unit, plan: Gemm | Alu) -> None:
        """What was written once stays so, and sums are touched by one queue alone: a look at the
        first of those that are alike is enough."""
        if isinstance(plan, Alu):
            self._was_written(unit, self.acc, plan.reads)
            self._was_written(unit, self.acc, plan.writes)
        elif plan.groups:
            self._was_written(unit, self.inp, plan.inputs)
            self._was_written(unit, self.wgt, plan.weights)
            self._was_written(unit, self.acc, plan.writes)
        self._may_write(unit, self.acc, plan.writes)

    def _planned(self, number: int) -> Gemm | Alu:
        entry = self.module.instructions[number]
        counts = int(entry["iter_out"]), int(entry["iter_in"])
        micro = self._micro_ops(number)
        if min(counts) < 1:
            self._refuse(number, f"expected loops of one iteration at least, got {counts}")
        if len(micro) * counts[0] * counts[1] > MOST_OPERATIONS:
            self._refuse(number, f"expected at most {MOST_OPERATIONS} operations of one")
        dst, src, wgt = (
            indices(micro, name, counts, (int(entry[f"{name}_out"]), int(entry[f"{name}_in"])))
            for name in ("dst", "src", "wgt")
        )
        self._check_indices(number, self.acc, dst)
        if entry["opcode"] == GEMM and entry["reset"]:
            return plan_reset(dst)
        hazard = first_hazard(dst)
        if hazard >= 0:
            self._refuse(
                number,
                f"micro-op {hazard % len(micro)} writes sum {int(dst[hazard])}, which one of the "
                "two before it writes; it is still in the pipe",
            )
        if entry["opcode"] == ALU:
            if not entry["use_imm"]:
                self._check_indices(number, self.acc, src)
            return plan_alu(dst, src, immediate=bool(entry["use_imm"]))
        self._check_indices(number, self.inp, src)
        self._check_indices(number, self.wgt, wgt)
        return plan_gemm(dst, src, wgt)

    def _micro_ops(self, number: int) -> np.ndarray:
        """Those of an instruction. isa.MICRO_OP [n]"""
        begin, end = (int(self.module.instructions[n][number]) for n in ("uop_begin", "uop_end"))
        if not begin < end <= len(self.uop.data):
            self._refuse(
                number,
                f"expected micro-ops from 0 to below {len(self.uop.data)}; got {begin} to {end}",
            )
        missing = np.flatnonzero(self.uop.wrote[begin:end] == 0)
        if len(missing):
            self._refuse(number, f"reads uop {begin + int(missing[0])}, which nothing wrote")
        return decode_uops(self.uop.data[begin:end], self.module.config)

    def _check_indices(self, number: int, chip: _Chip, index: np.ndarray) -> None:
        largest = int(index.max())
        if largest >= len(chip.data):
            self._refuse(
                number,
                f"expected elements of {chip.memory} below {len(chip.data)}; its micro-ops reach "
                f"{largest}",
            )

    # -- who may touch what ------------------------------------------------------------------

    def _was_written(self, unit: Unit, chip: _Chip, region: Region) -> None:
        wrote = chip.wrote[region]
        if not wrote.all():
            element = _element(region, int(np.flatnonzero(wrote == 0)[0]))
            number = self._who(unit, element)
            self._refuse(number, f"reads {chip.memory} {element}, which nothing wrote")

    def _may_read(self, unit: Unit, chip: _Chip, region: Region) -> int:
        """Check that its writer is certainly done, and note the reader. Returns the last writer."""
        wrote = chip.wrote[region]
        latest = int(wrote.max())
        if chip.writer != unit.queue and latest > unit.known[chip.writer]:
            self._uncertain(unit, chip, region, wrote > unit.known[chip.writer], "reads")
        chip.read[region] = unit.last
        return latest

    def _may_write(self, unit: Unit, chip: _Chip, region: Region) -> None:
        """Check that readers of the old content are certainly done, and note the writer."""
        self._is_free(unit, chip, region)
        chip.wrote[region] = unit.last

    def _is_free(self, unit: Unit, chip: _Chip, region: Region) -> None:
        if chip.reader != unit.queue:
            read = chip.read[region]
            if read.max(initial=0) > unit.known[chip.reader]:
                self._uncertain(unit, chip, region, read > unit.known[chip.reader], "writes")

    def _uncertain(
        self, unit: Unit, chip: _Chip, region: Region, early: np.ndarray, does: str
    ) -> NoReturn:
        element = _element(region, int(np.flatnonzero(early)[0]))
        other = QUEUES[chip.writer if does == "reads" else chip.reader]
        self._refuse(
            self._who(unit, element),
            f"{does} {chip.memory} {element} while the queue {other} may be at it; a token is "
            "missing",
        )

    def _who(self, unit: Unit, element: int) -> int:
        """The instruction of a unit that copies the element; its first one if they compute."""
        if unit.opcode not in (LOAD, STORE):
            return self._first(unit)
        numbers = self._units.of(unit)
        at = np.searchsorted(self._copies.end[numbers], element, side="right")
        return int(numbers[int(at)])

    def _first(self, unit: Unit) -> int:
        """The number of its first instruction."""
        return int(self._units.numbers[unit.at])

    # -- the end -----------------------------------------------------------------------------

    def _finish(self, unit: Unit) -> None:
        """When FINISH is reached, all stores are certainly done."""
        stores = int((self._course.queue == _STORE).sum())
        if unit.known[_STORE] < stores:
            number = self._first(unit)
            self._refuse(number, "the queue store may still be at work; a token is missing")

    def _check_outputs(self) -> None:
        opcodes = self.module.instructions["opcode"]
        if not len(opcodes) or opcodes[-1] != FINISH:
            raise InputError(f"{self.module.name}: expected finish as its last instruction")
        for number, buffer in enumerate(self.module.buffers):
            if not buffer.written:
                continue
            stored = np.zeros(buffer.elements, bool)
            rows = [rows for at, rows in self._stored if at == number]
            stored[np.concatenate(rows or [np.zeros(0, np.int64)])] = True
            if not stored.all():
                missing = int((~stored).sum())
                raise InputError(
                    f"{self.module.name}: {missing} of {stored.size} elements of {buffer.name} are "
                    f"not stored, the first is {int(np.flatnonzero(~stored)[0])}"
                )

    def _refuse(self, number: int, what: str) -> NoReturn:
        raise InputError(f"{describe(self.module.instructions, number)}: {what}")


def _element(region: Region, offset: int) -> int:
    return region.start + offset if isinstance(region, slice) else int(region[offset])


def _given(module: VtaModule, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What each buffer holds that is not written. Raises: InputError for arrays that do not fit."""
    expected = {buffer.name: buffer for buffer in module.inputs}
    unknown = [name for name in arrays if name not in expected]
    if unknown:
        raise InputError(
            f"{module.name}: no input {', '.join(unknown)}; there are {', '.join(expected)}"
        )
    for name, buffer in expected.items():
        if name not in arrays:
            raise InputError(f"{module.name}: expected input {name}, got none")
        array = arrays[name]
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            raise InputError(
                f"{module.name}: expected {name} as {buffer.dtype} {list(buffer.shape)}, got "
                f"{array.dtype} {list(array.shape)}"
            )
    return {**arrays, UOPS: module.uops}


def _sources(
    module: VtaModule, given: Mapping[str, np.ndarray], chips: Sequence[_Chip]
) -> list[np.ndarray]:
    """Each buffer as elements of its chip, and behind them one of zeros; results are all zero.

    Raises: InputError for a buffer of another size than its array.
    """
    made: list[np.ndarray] = []
    for buffer, chip in zip(module.buffers, chips, strict=True):
        source = np.zeros((buffer.elements + 1, *chip.data.shape[1:]), chip.data.dtype)
        array = given.get(buffer.name, source[:-1])
        if buffer.written:
            array = np.broadcast_to(np.zeros(1, buffer.dtype), buffer.shape)
        size = element_bytes(buffer.memory, module.config) * buffer.elements
        if array.nbytes != size:
            raise InputError(
                f"{module.name}: buffer {buffer.name} has {array.nbytes} bytes; its "
                f"{buffer.elements} elements of {buffer.memory} take {size}"
            )
        made.append(source)
        if not buffer.written:
            elements = array.reshape(source[:-1].shape)
            source[:-1] = elements.swapaxes(1, 2) if chip.memory == "wgt" else elements
    return made
