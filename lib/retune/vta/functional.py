"""What a module computes: bit-exact, instruction by instruction, each of them whole in numpy.

Read `execute`. A stream is refused, with the number of the instruction, if it leaves a memory or a
buffer, reads what nothing wrote, takes a micro-op that there is not, writes a sum that is still in
the pipe, or touches what another queue may be at: order that no token makes certain is no order,
even where these queues would have kept it.
"""

from collections.abc import Mapping

import numpy as np

from retune.core.errors import InputError
from retune.vta.isa import (
    ACC,
    ACC8,
    ALU,
    ALU_OPS,
    FINISH,
    GEMM,
    INP,
    LOAD,
    MEMORIES,
    OUT,
    QUEUES,
    STORE,
    UOP,
    WGT,
    decode_uops,
)
from retune.vta.module import UOPS, DramBuffer, VtaModule, element_bytes
from retune.vta.products import Alu, Gemm, Touched, first_hazard, indices, plan_alu, plan_gemm
from retune.vta.queues import Course, describe
from retune.vta.timing import simulate

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
        self.wrote = np.zeros(depth, np.int64)
        """Of each element, the number in its queue of whoever wrote it, from 1; 0: nobody did."""
        self.read = np.zeros(depth, np.int64)
        """The same of the last one that read it."""


class _Machine:
    """The accelerator while it executes a module."""

    def __init__(self, module: VtaModule, arrays: Mapping[str, np.ndarray], course: Course) -> None:
        self.module = module
        self._course = course
        self._queue: list[int] = course.queue.tolist()
        self._known: list[list[int]] = course.known.tolist()
        self._number: list[int] = (course.position + 1).tolist()
        """Of each instruction in its queue, from 1."""
        config = module.config
        tensor, matrix = (config.batch, config.block), (config.block, config.block)
        # Bytes are kept as float32, which products of matrices take.
        self.inp = _Chip("inp", config.inp_depth, tensor, "float32")
        self.wgt = _Chip("wgt", config.wgt_depth, matrix, "float32")
        self.acc = _Chip("acc", config.acc_depth, tensor, "int32")
        self.out = _Chip("out", config.acc_depth, tensor, "int8")
        self.uop = _Chip("uop", config.uop_depth, (), "uint32")
        self.dram = _dram(module, arrays)
        self.stored = {b.name: np.zeros(b.elements, bool) for b in module.outputs}
        self._plans: dict[tuple[int | bytes, ...], Gemm | Alu] = {}

    def run(self) -> dict[str, np.ndarray]:
        stream, course = self.module.instructions, self._course
        rows = [dict(zip(stream.dtype.names or (), row, strict=True)) for row in stream.tolist()]
        for number in course.order.tolist():
            entry = rows[number]
            opcode = entry["opcode"]
            if opcode == LOAD:
                self._load(number, entry)
            elif opcode == STORE:
                self._store(number, entry)
            elif opcode == FINISH:
                self._finish(number)
            else:
                self._compute(number, entry)
        self._check_outputs()
        return {b.name: self.dram[b.name].reshape(b.shape) for b in self.module.outputs}

    # -- memory instructions -----------------------------------------------------------------

    def _load(self, number: int, entry: Mapping[str, int]) -> None:
        memory = entry["memory_type"]
        chips = {UOP: self.uop, WGT: self.wgt, INP: self.inp, ACC: self.acc, ACC8: self.acc}
        if memory not in chips:
            raise self._refused(number, f"expected a memory that is loaded, got type {memory}")
        chip = chips[memory]
        top, left = entry["y_pad_top"], entry["x_pad_left"]
        high = top + entry["y_size"] + entry["y_pad_bottom"]
        wide = left + entry["x_size"] + entry["x_pad_right"]
        place = self._range(number, chip, entry["sram_base"], high * wide)
        at, rows = self._rows(number, entry)
        self._may_write(number, chip, place)
        element = chip.data.shape[1:]
        whole = np.zeros((high, wide, *element), chip.data.dtype)
        if at is not None:
            values = self.dram[at.name].reshape(at.elements, *element)[rows]
            whole[top : top + entry["y_size"], left : left + entry["x_size"]] = values
        chip.data[place] = whole.reshape(high * wide, *element)

    def _store(self, number: int, entry: Mapping[str, int]) -> None:
        if entry["memory_type"] != OUT:
            name = f"type {entry['memory_type']}"
            raise self._refused(number, f"expected memory out, which alone is stored, got {name}")
        if any(entry[pad] for pad in ("y_pad_top", "y_pad_bottom", "x_pad_left", "x_pad_right")):
            raise self._refused(number, "expected no padding, which is for loads")
        count = entry["y_size"] * entry["x_size"]
        place = self._range(number, self.out, entry["sram_base"], count)
        at, rows = self._rows(number, entry)
        if at is None:
            return
        self._may_read(number, self.out, place)
        target = self.dram[at.name].reshape(at.elements, *self.out.data.shape[1:])
        target[rows] = self.out.data[place].reshape(*rows.shape, *self.out.data.shape[1:])
        self.stored[at.name][rows] = True

    def _rows(self, number: int, entry: Mapping[str, int]) -> tuple[DramBuffer | None, np.ndarray]:
        """The buffer that is copied from or to, and which of its elements; none, if none are."""
        y, x, base = entry["y_size"], entry["x_size"], entry["dram_base"]
        rows = np.arange(y)[:, None] * entry["x_stride"] + np.arange(x)
        if not rows.size:
            return None, rows
        memory, last = MEMORIES[entry["memory_type"]], base + int(rows[-1, -1])
        for buffer in self.module.buffers:
            begin = buffer.offset
            if buffer.memory == memory and begin <= base and last < begin + buffer.elements:
                return buffer, rows + (base - begin)
        raise self._refused(
            number, f"expected elements of one {memory} buffer in DRAM, got {base} to {last}"
        )

    def _range(self, number: int, chip: _Chip, base: int, count: int) -> slice:
        if base + count > len(chip.data):
            raise self._refused(
                number,
                f"expected elements of {chip.memory} below {len(chip.data)}; got {base} to "
                f"{base + count - 1}",
            )
        return slice(base, base + count)

    # -- compute instructions ----------------------------------------------------------------

    def _compute(self, number: int, entry: Mapping[str, int]) -> None:
        plan = self._plan(number, entry)
        touched = plan.touched
        if isinstance(plan, Gemm):
            if not entry["reset"]:
                self._may_read(number, self.inp, touched.src)
                self._may_read(number, self.wgt, touched.wgt)
                self._may_read(number, self.acc, touched.dst)
        else:
            self._may_read(number, self.acc, touched.src)
            self._may_read(number, self.acc, touched.dst)
        self._may_write(number, self.acc, touched.dst)
        self._may_write(number, self.out, touched.dst)
        acc = self.acc.data
        if isinstance(plan, Alu):
            imm = entry["imm"] if entry["use_imm"] else None
            plan.run(ALU_OPS[entry["alu_op"]], imm, acc)
        elif entry["reset"]:
            acc[touched.dst] = 0
        else:
            plan.run(self.inp.data, self.wgt.data, acc)
        self.out.data[touched.dst] = acc[touched.dst].astype(np.int8)

    def _plan(self, number: int, entry: Mapping[str, int]) -> Gemm | Alu:
        """What the instruction does, from a store of those that were there before."""
        begin, end = entry["uop_begin"], entry["uop_end"]
        if not begin < end <= len(self.uop.data):
            raise self._refused(
                number,
                f"expected micro-ops from 0 to below {len(self.uop.data)}; got {begin} to {end}",
            )
        self._may_read(number, self.uop, slice(begin, end))
        words = self.uop.data[begin:end]
        loops = ("iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in")
        kinds = ("opcode", "reset", "wgt_out", "wgt_in", "use_imm", "alu_op")
        key = (words.tobytes(), *(entry[name] for name in (*loops, *kinds)))
        if key not in self._plans:
            self._plans[key] = self._planned(number, entry, decode_uops(words, self.module.config))
        return self._plans[key]

    def _planned(self, number: int, entry: Mapping[str, int], micro: np.ndarray) -> Gemm | Alu:
        counts = entry["iter_out"], entry["iter_in"]
        if min(counts) < 1:
            raise self._refused(number, f"expected loops of one iteration at least, got {counts}")
        if len(micro) * counts[0] * counts[1] > MOST_OPERATIONS:
            raise self._refused(number, f"expected at most {MOST_OPERATIONS} operations of one")
        dst, src, wgt = (
            indices(micro, name, counts, (entry[f"{name}_out"], entry[f"{name}_in"]))
            for name in ("dst", "src", "wgt")
        )
        self._check_indices(number, self.acc, dst)
        if entry["opcode"] == GEMM and entry["reset"]:
            return _reset(dst)
        hazard = first_hazard(dst)
        if hazard >= 0:
            raise self._refused(
                number,
                f"micro-op {hazard % len(micro)} writes sum {int(dst[hazard])}, which one of the "
                "two before it writes; it is still in the pipe",
            )
        if entry["opcode"] == ALU:
            if not 0 <= entry["alu_op"] < len(ALU_OPS):
                raise self._refused(number, f"no operation {entry['alu_op']} of the ALU")
            if not entry["use_imm"]:
                self._check_indices(number, self.acc, src)
            return plan_alu(dst, src, immediate=bool(entry["use_imm"]))
        self._check_indices(number, self.inp, src)
        self._check_indices(number, self.wgt, wgt)
        return plan_gemm(dst, src, wgt)

    def _check_indices(self, number: int, chip: _Chip, index: np.ndarray) -> None:
        largest = int(index.max())
        if largest >= len(chip.data):
            raise self._refused(
                number,
                f"expected elements of {chip.memory} below {len(chip.data)}; its micro-ops reach "
                f"{largest}",
            )

    # -- who may touch what ------------------------------------------------------------------

    def _may_read(self, number: int, chip: _Chip, place: np.ndarray | slice) -> None:
        """It was written, and that is certain. The reader is noted."""
        wrote = chip.wrote[place]
        if not wrote.all():
            element = _element(place, int(np.flatnonzero(wrote == 0)[0]))
            raise self._refused(number, f"reads {chip.memory} {element}, which nothing wrote")
        queue, known = self._queue[number], self._known[number]
        writer = _LOAD if chip in (self.inp, self.wgt) else _COMPUTE
        if writer != queue:
            self._certain(number, chip, place, wrote > known[writer], "reads", writer)
        chip.read[place] = self._number[number]

    def _may_write(self, number: int, chip: _Chip, place: np.ndarray | slice) -> None:
        """Whoever read what was there is certainly done. The writer is noted."""
        queue, known = self._queue[number], self._known[number]
        reader = _STORE if chip is self.out else _COMPUTE
        if reader != queue:
            early = chip.read[place] > known[reader]
            self._certain(number, chip, place, early, "writes", reader)
        chip.wrote[place] = self._number[number]

    def _certain(
        self, number: int, chip: _Chip, place: np.ndarray | slice, early: np.ndarray, does: str,
        other: int,
    ) -> None:  # fmt: skip
        if early.any():
            element = _element(place, int(np.flatnonzero(early)[0]))
            raise self._refused(
                number,
                f"{does} {chip.memory} {element} while the queue {QUEUES[other]} may be at it; a "
                "token is missing",
            )

    # -- the end -----------------------------------------------------------------------------

    def _finish(self, number: int) -> None:
        """When FINISH is reached, all stores are certainly done."""
        stores = int((self._course.queue == _STORE).sum())
        if self._known[number][_STORE] < stores:
            raise self._refused(number, "the queue store may still be at work; a token is missing")

    def _check_outputs(self) -> None:
        opcodes = self.module.instructions["opcode"]
        if not len(opcodes) or opcodes[-1] != FINISH:
            raise InputError(f"{self.module.name}: expected finish as its last instruction")
        for name, stored in self.stored.items():
            if not stored.all():
                missing = int((~stored).sum())
                raise InputError(
                    f"{self.module.name}: {missing} of {stored.size} elements of {name} are not "
                    f"stored, the first is {int(np.flatnonzero(~stored)[0])}"
                )

    def _refused(self, number: int, what: str) -> InputError:
        return InputError(f"{describe(self.module.instructions, number)}: {what}")


def _element(place: np.ndarray | slice, offset: int) -> int:
    return place.start + offset if isinstance(place, slice) else int(place[offset])


def _dram(module: VtaModule, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The numbers of each buffer, flat. Raises: InputError for arrays that do not fit."""
    expected = {buffer.name: buffer for buffer in module.inputs}
    unknown = [name for name in arrays if name not in expected]
    if unknown:
        raise InputError(
            f"{module.name}: no input {', '.join(unknown)}; there are {', '.join(expected)}"
        )
    found = {b.name: np.zeros(b.shape, b.dtype).reshape(-1) for b in module.outputs}
    for name, buffer in expected.items():
        if name not in arrays:
            raise InputError(f"{module.name}: expected input {name}, got none")
        array = arrays[name]
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            raise InputError(
                f"{module.name}: expected {name} as {buffer.dtype} {list(buffer.shape)}, got "
                f"{array.dtype} {list(array.shape)}"
            )
        found[name] = np.ascontiguousarray(array).reshape(-1)
    if any(buffer.name == UOPS for buffer in module.buffers):
        found[UOPS] = module.uops
    for buffer in module.buffers:
        size = element_bytes(buffer.memory, module.config) * buffer.elements
        if found[buffer.name].nbytes != size:
            raise InputError(
                f"{module.name}: buffer {buffer.name} has {found[buffer.name].nbytes} bytes; its "
                f"{buffer.elements} elements of {buffer.memory} take {size}"
            )
    return found


def _reset(dst: np.ndarray) -> Gemm:
    none = np.zeros(0, np.int64)
    return Gemm(touched=Touched(dst=np.unique(dst), src=none, wgt=none), groups=())
