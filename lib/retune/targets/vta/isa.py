"""The instruction set: fields of an instruction, and their 128 bits.

Read `INSTRUCTION` and `encode`. Instructions are structured arrays with one int64 column for each
field of any opcode, so that a stream is built, checked and decoded by a handful of numpy calls.
Columns that an opcode does not have are zero.
Source: Apache TVM, 3rdparty/vta-hw/include/targets/vta/hw_spec.h.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from retune.core.dtypes import INT8, INT32, UINT32, DType
from retune.core.errors import InputError
from retune.targets.vta.config import DRAM_BITS, ITER_BITS, PAD_BITS, SRAM_BITS, VtaConfig

LOAD, STORE, GEMM, FINISH, ALU = range(5)
OPCODES = ("load", "store", "gemm", "finish", "alu")
"""Names by number."""

UOP, WGT, INP, ACC, OUT, ACC8 = range(6)
"""Numbers of `MEMORY_TYPES`."""


class MemoryType(NamedTuple):
    """Elements that a copy moves between DRAM and a memory on chip."""

    name: str
    chip: str
    """The memory on chip, of `VtaConfig`'s depth of that name."""
    element: str
    """What lies in DRAM, of `VtaConfig`'s bytes of that name."""
    dtype: DType
    """Of the numbers in DRAM."""


MEMORY_TYPES = (
    MemoryType("uop", "uop", "uop", UINT32),
    MemoryType("wgt", "wgt", "wgt", INT8),
    MemoryType("inp", "inp", "inp", INT8),
    MemoryType("acc", "acc", "acc", INT32),
    MemoryType("out", "out", "out", INT8),
    MemoryType("acc8", "acc", "inp", INT8),
)
"""By number. `acc8` reads int8 from DRAM into accumulators of int32; `out` alone is stored."""
MEMORIES = tuple(memory.name for memory in MEMORY_TYPES)

ALU_OPS = ("min", "max", "add", "shr", "mul")
"""Operations by number; a negative shift goes to the left."""

TOKENS = ("pop_prev", "pop_next", "push_prev", "push_next")
"""Waits before an instruction, and signals after it, to the neighbour nearer to the loads (prev)
and to the stores (next)."""

_MEMORY_FIELDS = (
    "memory_type", "sram_base", "dram_base", "y_size", "x_size", "x_stride",
    "y_pad_top", "y_pad_bottom", "x_pad_left", "x_pad_right",
)  # fmt: skip
_LOOP_FIELDS = (
    "reset", "uop_begin", "uop_end", "iter_out", "iter_in",
    "dst_out", "dst_in", "src_out", "src_in",
)  # fmt: skip
_GEMM_FIELDS = ("wgt_out", "wgt_in")
_ALU_FIELDS = ("alu_op", "use_imm", "imm")
FIELDS = ("opcode", *TOKENS, *_MEMORY_FIELDS, *_LOOP_FIELDS, *_GEMM_FIELDS, *_ALU_FIELDS)

INSTRUCTION = np.dtype([(name, np.int64) for name in FIELDS])
"""One instruction."""

UOP_FIELDS = ("dst", "src", "wgt")
MICRO_OP = np.dtype([(name, np.int64) for name in UOP_FIELDS])
"""One micro-op: indices to which the loops of an instruction add."""

QUEUES = ("load", "compute", "store")
"""What runs at once."""

Fields = tuple[tuple[str, int, int, int], ...]
"""Name, word, lowest bit, bits."""

_SIGNED = frozenset({"imm"})


def named(entry: Mapping[str, int] | np.void) -> str:
    """What an instruction is called: `load.inp`, `gemm`, `gemm.reset`, `alu.shr`."""
    opcode = int(entry["opcode"])
    kind = ""
    if opcode in (LOAD, STORE):
        kind = _of(MEMORIES, int(entry["memory_type"]))
    elif opcode == ALU:
        kind = _of(ALU_OPS, int(entry["alu_op"]))
    elif opcode == GEMM and entry["reset"]:
        kind = "reset"
    return f"{OPCODES[opcode]}.{kind}" if kind else OPCODES[opcode]


def describe(instructions: np.ndarray, number: int) -> str:
    """An instruction in an error: `instruction 12 (load.inp)`."""
    return f"instruction {number} ({named(instructions[number])})"


def _of(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


def queue_of(instructions: np.ndarray) -> np.ndarray:
    """The queue that each instruction goes to, as an index of `QUEUES`. int64 [n]"""
    opcode, memory = instructions["opcode"], instructions["memory_type"]
    loads = (opcode == LOAD) & ((memory == INP) | (memory == WGT))
    return np.where(loads, 0, np.where(opcode == STORE, 2, 1))


def encode(instructions: np.ndarray, config: VtaConfig) -> np.ndarray:
    """The bits of instructions, as two words each. uint64 [n, 2]

    Raises: InputError naming the first instruction with a value that its field cannot hold.
    """
    words = np.zeros((len(instructions), 2), np.uint64)
    _check_opcodes(instructions["opcode"])
    for opcode, layout in layouts(config).items():
        mine = np.flatnonzero(instructions["opcode"] == opcode)
        if not len(mine):
            continue
        chosen = instructions[mine]
        owned = {name for name, *_ in layout}
        for name in FIELDS:
            if name not in owned:
                _check(mine, chosen[name] == 0, chosen, name, "0")
        for name, word, low, bits in layout:
            least, most = _limits(name, bits)
            value = chosen[name]
            _check(mine, (value >= least) & (value <= most), chosen, name, f"{least} to {most}")
            field = value.astype(np.uint64) & np.uint64((1 << bits) - 1)
            words[mine, word] |= field << np.uint64(low)
    return words


def decode(words: np.ndarray, config: VtaConfig) -> np.ndarray:
    """The inverse of `encode`. INSTRUCTION [n]

    Raises: InputError naming the first instruction with an unknown opcode, or with bits that no
    field has.
    """
    instructions = np.zeros(len(words), INSTRUCTION)
    opcodes = (words[:, 0] & np.uint64(7)).astype(np.int64)
    _check_opcodes(opcodes)
    for opcode, layout in layouts(config).items():
        mine = np.flatnonzero(opcodes == opcode)
        if not len(mine):
            continue
        used = [0, 0]
        for name, word, low, bits in layout:
            value = ((words[mine, word] >> np.uint64(low)) & np.uint64((1 << bits) - 1)).astype(
                np.int64
            )
            if name in _SIGNED:
                value -= (value >> (bits - 1)) << bits
            instructions[name][mine] = value
            used[word] |= ((1 << bits) - 1) << low
        for word in (0, 1):
            stray = words[mine, word] & ~np.uint64(used[word])
            if stray.any():
                number = int(mine[np.flatnonzero(stray)[0]])
                raise InputError(
                    f"instruction {number} ({OPCODES[opcode]}): bits are set that no field has; "
                    "it was not made for this variant of VTA"
                )
    return instructions


def encode_uops(uops: np.ndarray, config: VtaConfig) -> np.ndarray:
    """The bits of micro-ops. uint32 [n]

    Raises: InputError naming the first micro-op with an index that is out of range.
    """
    words = np.zeros(len(uops), np.uint32)
    for name, _, low, bits in _uop_layout(config):
        value = uops[name]
        wrong = np.flatnonzero((value < 0) | (value >> bits))
        if len(wrong):
            raise InputError(
                f"micro-op {int(wrong[0])}: expected {name} from 0 to {(1 << bits) - 1}; "
                f"got {int(value[wrong[0]])}"
            )
        words |= value.astype(np.uint32) << np.uint32(low)
    return words


def decode_uops(words: np.ndarray, config: VtaConfig) -> np.ndarray:
    """The inverse of `encode_uops`. MICRO_OP [n]"""
    uops = np.zeros(len(words), MICRO_OP)
    for name, _, low, bits in _uop_layout(config):
        uops[name] = (words >> np.uint32(low)) & np.uint32((1 << bits) - 1)
    return uops


@lru_cache(maxsize=16)
def layouts(config: VtaConfig) -> Mapping[int, Fields]:
    """Where the fields of each opcode lie."""
    head = (("opcode", 3), *((token, 1) for token in TOKENS))
    memory = _fields(
        (*head, ("memory_type", 3), ("sram_base", SRAM_BITS), ("dram_base", DRAM_BITS)),
        (
            *(("y_size", 16), ("x_size", 16), ("x_stride", 16)),
            *((name, PAD_BITS) for name in _MEMORY_FIELDS[-4:]),
        ),
    )
    loops = (
        *head,
        *(("reset", 1), ("uop_begin", config.uop_bits), ("uop_end", config.uop_bits + 1)),
        *(("iter_out", ITER_BITS), ("iter_in", ITER_BITS)),
    )
    factors = (
        *(("dst_out", config.acc_bits), ("dst_in", config.acc_bits)),
        *(("src_out", config.src_bits), ("src_in", config.src_bits)),
    )
    gemm = _fields(loops, (*factors, ("wgt_out", config.wgt_bits), ("wgt_in", config.wgt_bits)))
    alu = _fields(loops, (*factors, ("alu_op", 3), ("use_imm", 1), ("imm", 16)))
    return {LOAD: memory, STORE: memory, GEMM: gemm, FINISH: _fields(head, ()), ALU: alu}


def _fields(first: tuple[tuple[str, int], ...], second: tuple[tuple[str, int], ...]) -> Fields:
    """The fields of two words, from the lowest bit."""
    placed: list[tuple[str, int, int, int]] = []
    for word, fields in enumerate((first, second)):
        low = 0
        for name, bits in fields:
            placed.append((name, word, low, bits))
            low += bits
    return tuple(placed)


def _uop_layout(config: VtaConfig) -> Fields:
    return _fields(
        (("dst", config.acc_bits), ("src", config.src_bits), ("wgt", config.wgt_bits)), ()
    )


def _limits(name: str, bits: int) -> tuple[int, int]:
    if name in _SIGNED:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


def _check_opcodes(opcodes: np.ndarray) -> None:
    wrong = np.flatnonzero((opcodes < 0) | (opcodes >= len(OPCODES)))
    if len(wrong):
        raise InputError(
            f"instruction {int(wrong[0])}: no opcode {int(opcodes[wrong[0]])}; there are "
            + ", ".join(f"{i} {name}" for i, name in enumerate(OPCODES))
        )


def _check(numbers: np.ndarray, good: np.ndarray, chosen: np.ndarray, name: str, what: str) -> None:
    if good.all():
        return
    first = int(np.flatnonzero(~good)[0])
    raise InputError(
        f"instruction {int(numbers[first])} ({OPCODES[int(chosen['opcode'][first])]}): expected "
        f"{name} {what}; got {int(chosen[name][first])}"
    )
