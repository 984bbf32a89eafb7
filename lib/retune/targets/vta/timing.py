"""The time of a module: cycles of each instruction, and of three queues at once.

Read `simulate`. Rates are those of the Chisel implementation; where they vary a little, the slower
one is taken. What two instructions read at the same time they read one after the other; fetching
does not slow them down.
Source: Apache TVM, 3rdparty/vta-hw/hardware/chisel (Load, Store, TensorGemm, TensorAlu, VME).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from retune.core.errors import InputError
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.isa import ALU, GEMM, LOAD, MEMORIES, QUEUES, STORE, describe
from retune.targets.vta.module import VtaModule, element_bytes
from retune.targets.vta.queues import Course, run_queues

MEMORY_CYCLES = 16
"""Until the first beat of a row that is read comes, and until a burst that was written is
acknowledged."""
BURST_CYCLES = 2
"""Between bursts of a row."""
COMMAND_CYCLES = 1
"""For a burst that is written."""
PIPE_CYCLES = 6
"""To start and to drain the GEMM core or the ALU, for an instruction."""
TENSOR_CYCLES = 2
"""Of an ALU micro-op on two tensors; with an immediate it takes one, as a GEMM micro-op does."""
INSTRUCTION_BYTES = 16
_ROWS = 1 << 20
"""Of copies that are looked at together, so that a stream of many takes little memory."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Costs:
    """Cycles of each instruction by itself."""

    busy: np.ndarray
    """From its begin to its end. int64 [n]"""
    bus: np.ndarray
    """For which it keeps others from reading DRAM. int64 [n]"""
    useful: np.ndarray
    """In which the GEMM core multiplies. int64 [n]"""
    read_bytes: int
    """From DRAM, by all of them."""
    written_bytes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleTiming:
    """The course of a module."""

    module: VtaModule
    costs: Costs
    course: Course

    @property
    def cycles(self) -> int:
        """From the first fetch to the end of the last instruction."""
        return int(self.course.end.max(initial=0))

    @property
    def time_us(self) -> float:
        """Microseconds at the board's clock."""
        return self.cycles / self.module.config.board.mhz

    @property
    def gops(self) -> float:
        """1e9 operations a second; a multiply-add of the layer is two."""
        return 2e-3 * self.module.macs * self.module.config.board.mhz / max(1, self.cycles)

    @property
    def utilization(self) -> float:
        """Share of the cycles in which the GEMM core multiplies."""
        return float(self.costs.useful.sum()) / max(1, self.cycles)

    @cached_property
    def busy(self) -> dict[str, int]:
        """Cycles in which each queue works."""
        spent = self.course.end - self.course.start
        return {name: int(spent[self.course.queue == i].sum()) for i, name in enumerate(QUEUES)}


@lru_cache(maxsize=8)
def simulate(module: VtaModule) -> ModuleTiming:
    """The course of a module; the same for the same module, always.

    Those of the last few modules are kept, as who times a module also executes it.

    Raises: InputError as `queues.run_queues`, and for an instruction without micro-ops.
    """
    _check_loops(module.instructions)
    found = costs(module.instructions, module.config)
    fetch = (MEMORY_CYCLES, -(-INSTRUCTION_BYTES // module.config.board.beat_bytes))
    course = run_queues(module.instructions, found.busy, found.bus, fetch)
    return ModuleTiming(module=module, costs=found, course=course)


def _check_loops(instructions: np.ndarray) -> None:
    """Raises: InputError naming the first GEMM or ALU instruction that ends before it begins."""
    wrong = instructions["uop_end"] < instructions["uop_begin"]
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        begin, end = (int(instructions[name][number]) for name in ("uop_begin", "uop_end"))
        raise InputError(
            f"{describe(instructions, number)}: expected micro-ops in order; got {begin} to {end}"
        )


def costs(instructions: np.ndarray, config: VtaConfig) -> Costs:
    """Cycles of each instruction by itself."""
    count = len(instructions)
    opcode = instructions["opcode"]
    busy, bus, useful = (
        np.ones(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    micro = instructions["uop_end"] - instructions["uop_begin"]
    micro = micro * instructions["iter_out"] * instructions["iter_in"]
    gemm, alu = opcode == GEMM, opcode == ALU
    useful[gemm] = np.where(instructions["reset"], 0, micro)[gemm]
    busy[gemm] = micro[gemm] + PIPE_CYCLES
    each = np.where(instructions["use_imm"], 1, TENSOR_CYCLES)
    busy[alu] = (micro * each)[alu] + PIPE_CYCLES
    sizes = np.asarray([element_bytes(memory, config) for memory in MEMORIES])
    size = sizes[np.minimum(instructions["memory_type"], len(MEMORIES) - 1)]
    moved = instructions["y_size"] * instructions["x_size"]
    beats, bursts = _transfers(instructions, size, config)
    loads, stores = opcode == LOAD, opcode == STORE
    rows = np.where(instructions["x_size"] > 0, instructions["y_size"], 0)
    bus[loads] = (beats + BURST_CYCLES * bursts)[loads]
    busy[loads] = (bus + MEMORY_CYCLES * rows + _padding(instructions) + 1)[loads]
    written = beats + moved + (MEMORY_CYCLES + COMMAND_CYCLES) * bursts + 1
    busy[stores] = written[stores]
    return Costs(
        busy=busy,
        bus=bus,
        useful=useful,
        read_bytes=int((moved * size)[loads].sum()),
        written_bytes=int((moved * size)[stores].sum()),
    )


def _padding(instructions: np.ndarray) -> np.ndarray:
    """Elements of zeros that loads add. int64 [n]"""
    high = instructions["y_size"] + instructions["y_pad_top"] + instructions["y_pad_bottom"]
    wide = instructions["x_size"] + instructions["x_pad_left"] + instructions["x_pad_right"]
    return high * wide - instructions["y_size"] * instructions["x_size"]


def _transfers(
    instructions: np.ndarray, size: np.ndarray, config: VtaConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Beats and bursts of every copy; a burst does not cross a multiple of its length. int64 [n]"""
    beats, bursts = np.zeros((2, len(instructions)), np.int64)
    moving = np.isin(instructions["opcode"], (LOAD, STORE)) & (instructions["x_size"] > 0)
    chosen = np.flatnonzero(moving & (instructions["y_size"] > 0))
    parts = np.cumsum(instructions["y_size"][chosen]) // _ROWS
    beat, burst = config.board.beat_bytes, config.board.beat_bytes * config.board.burst_beats
    for part in np.split(chosen, np.flatnonzero(np.diff(parts)) + 1):
        owner, begin, end = _rows(instructions[part], size[part])
        for found, unit in ((beats, beat), (bursts, burst)):
            touched = (end - 1) // unit - begin // unit + 1
            found[part] = np.bincount(owner, touched, len(part)).astype(np.int64)
    return beats, bursts


def _rows(copies: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row that copies move the copy, its first byte in DRAM, the one behind it. int64"""
    rows = copies["y_size"]
    owner = np.repeat(np.arange(len(copies)), rows)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(rows) - rows, rows)
    begin = (copies["dram_base"][owner] + row * copies["x_stride"][owner]) * size[owner]
    return owner, begin, begin + (copies["x_size"] * size)[owner]
