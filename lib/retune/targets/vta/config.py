"""VtaConfig: one variant of the accelerator, and the sizes that follow from it.

Everything is a power of two, so a variant is a few logarithms, named as `vta_config.json` has them.
Source: Apache TVM, 3rdparty/vta-hw/config/vta_config.json and pkg_config.py.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retune.core.errors import InputError

_N = r"(\d{1,9})"
_NAME = re.compile(f"{_N}x{_N}_i{_N}w{_N}a{_N}_{_N}_{_N}_{_N}_{_N}", re.ASCII)

ITER_BITS = 14
"""Of the two loop counts in GEMM and ALU instructions."""
SRAM_BITS, DRAM_BITS, PAD_BITS = 16, 32, 4
"""Of a copy's first elements on chip and in DRAM, and of each side of its padding."""

_WORD_BITS = 64
"""An instruction is two words."""
_UOP_BITS = 32
_OTHER_BITS = 3 + 4 + 1 + 1 + 2 * ITER_BITS
"""Of a GEMM's first word, apart from its micro-ops: opcode, tokens, reset, one more bit for the
end of micro-ops than for their begin, loop counts."""
_ALU_BITS = 3 + 1 + 16
"""Of an ALU instruction's second word, apart from its factors: operation, use_imm, immediate."""


@dataclass(frozen=True, slots=True)
class BoardSpeed:
    """How fast a board's clock and its memory are."""

    mhz: float
    beat_bytes: int
    """Bytes that memory gives in a cycle."""
    burst_beats: int
    """Longest burst."""


BOARDS: Mapping[str, BoardSpeed] = {
    "sim": BoardSpeed(100, 8, 256),
    "tsim": BoardSpeed(100, 8, 16),
    "pynq": BoardSpeed(100, 8, 256),
    "ultra96": BoardSpeed(333, 16, 256),
    "zcu104": BoardSpeed(333, 16, 256),
    "de10nano": BoardSpeed(100, 8, 16),
}
"""Boards by the TARGET of `vta_config.json`; `sim` has the pace of Pynq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VtaConfig:
    """Logarithms to base 2: of widths in bits, of elements, and of buffers in bytes."""

    target: str = "sim"
    """One of `BOARDS`."""
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_batch: int = 0
    log_block: int = 4
    """Channels that lie together, of inputs and of outputs."""
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        """Raises: InputError for what no such accelerator can have."""
        if self.target not in BOARDS:
            raise InputError(f"VTA: expected target one of {', '.join(BOARDS)}; got {self.target}")
        for name, expected in (("log_inp_width", 3), ("log_wgt_width", 3), ("log_acc_width", 5)):
            got = getattr(self, name)
            if got != expected:
                raise InputError(
                    f"VTA: expected {name} {expected}, as inputs and weights are int8 and sums "
                    f"int32; got {got}"
                )
        for name, low, high in (
            ("log_batch", 0, 4), ("log_block", 1, 8), ("log_uop_buff_size", 4, 15),
            ("log_inp_buff_size", 8, 24), ("log_wgt_buff_size", 8, 24),
            ("log_acc_buff_size", 8, 24),
        ):  # fmt: skip
            got = getattr(self, name)
            if not low <= got <= high:
                raise InputError(f"VTA: expected {name} from {low} to {high}; got {got}")
        self._check_fields()

    def _check_fields(self) -> None:
        """Every buffer holds two elements at least, and indices fit into the instructions."""
        for name in ("inp", "wgt", "acc", "uop"):
            got = getattr(self, f"{name}_bits")
            what = f"log_{name}_buff_size {getattr(self, f'log_{name}_buff_size')}"
            size = f"elements of {getattr(self, f'{name}_bytes')} bytes (2**{got})"
            if got < 1:
                raise InputError(f"VTA: {what} is less than two {size}")
            if got > SRAM_BITS:
                raise InputError(
                    f"VTA: {what} is too deep: copies name at most 2**{SRAM_BITS} {size}"
                )
        index = self.acc_bits + self.src_bits
        for what, used, room in (
            ("a micro-op", index + self.wgt_bits, _UOP_BITS),
            ("an ALU instruction's factors", 2 * index + _ALU_BITS, _WORD_BITS),
            ("a GEMM instruction's loops", 2 * self.uop_bits + _OTHER_BITS, _WORD_BITS),
        ):
            if used > room:
                raise InputError(
                    f"VTA: buffers of {self.name} are too deep: {what} would take {used} bits, "
                    f"there are {room}; make log_*_buff_size smaller or log_block larger"
                )

    # -- what follows ------------------------------------------------------------------------

    def depth(self, memory: str) -> int:
        """Elements of a memory on chip: `uop`, `inp`, `wgt`, `acc`, or `out`, which is like it."""
        return int(getattr(self, f"{'acc' if memory == 'out' else memory}_depth"))

    @property
    def board(self) -> BoardSpeed:
        """Clock and memory."""
        return BOARDS[self.target]

    @property
    def batch(self) -> int:
        """Rows of a tensor element of inputs and sums."""
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        """Channels of a tensor element."""
        return 1 << self.log_block

    @property
    def inp_bytes(self) -> int:
        """Of one element of the input buffer, int8 [batch, block]."""
        return self.batch * self.block

    @property
    def wgt_bytes(self) -> int:
        """Of one element of the weight buffer, int8 [block out, block in]."""
        return self.block * self.block

    @property
    def acc_bytes(self) -> int:
        """Of one element of the accumulators, int32 [batch, block]."""
        return 4 * self.batch * self.block

    @property
    def out_bytes(self) -> int:
        """Of one element of the output buffer, int8 [batch, block]."""
        return self.inp_bytes

    @property
    def uop_bytes(self) -> int:
        """Of a micro-op."""
        return _UOP_BITS // 8

    @property
    def inp_bits(self) -> int:
        """Of an index into the input buffer."""
        return self.log_inp_buff_size - (self.inp_bytes.bit_length() - 1)

    @property
    def wgt_bits(self) -> int:
        """Of an index into the weight buffer."""
        return self.log_wgt_buff_size - (self.wgt_bytes.bit_length() - 1)

    @property
    def acc_bits(self) -> int:
        """Of an index into accumulators, and into the output buffer beside them."""
        return self.log_acc_buff_size - (self.acc_bytes.bit_length() - 1)

    @property
    def uop_bits(self) -> int:
        """Of an index into the micro-ops."""
        return self.log_uop_buff_size - (self.uop_bytes.bit_length() - 1)

    @property
    def src_bits(self) -> int:
        """Of a source: an input of GEMM, an accumulator of ALU."""
        return max(self.inp_bits, self.acc_bits)

    @property
    def inp_depth(self) -> int:
        """Elements of the input buffer."""
        return 1 << self.inp_bits

    @property
    def wgt_depth(self) -> int:
        """Elements of the weight buffer."""
        return 1 << self.wgt_bits

    @property
    def acc_depth(self) -> int:
        """Elements of the accumulators; the output buffer has as many."""
        return 1 << self.acc_bits

    @property
    def uop_depth(self) -> int:
        """Micro-ops that are there at once."""
        return 1 << self.uop_bits

    @property
    def macs(self) -> int:
        """Multiply-adds of the GEMM core in a cycle."""
        return self.batch * self.block * self.block

    @property
    def peak_gops(self) -> float:
        """1e9 operations a second at most; a multiply-add is two."""
        return 2e-3 * self.macs * self.board.mhz

    @property
    def gbytes_per_s(self) -> float:
        """1e9 bytes a second that memory gives at most."""
        return 1e-3 * self.board.beat_bytes * self.board.mhz

    # -- names -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The variant, such as `1x16_i8w8a32_15_15_18_17`; the board is not part of it."""
        widths = f"i{1 << self.log_inp_width}w{1 << self.log_wgt_width}a{1 << self.log_acc_width}"
        buffers = (
            self.log_uop_buff_size, self.log_inp_buff_size,
            self.log_wgt_buff_size, self.log_acc_buff_size,
        )  # fmt: skip
        return f"{self.batch}x{self.block}_{widths}_{'_'.join(map(str, buffers))}"

    @staticmethod
    def from_name(name: str, target: str = "sim") -> "VtaConfig":
        """The variant of that name. Raises: InputError if it is not one."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise InputError(
                f"VTA: expected a name such as {VtaConfig().name} (batch x block, widths, buffers "
                f"of uop, inp, wgt, acc); got {name!r}"
            )
        batch, block, inp, wgt, acc, *buffers = map(int, found.groups())
        names = ("log_batch", "log_block", "log_inp_width", "log_wgt_width", "log_acc_width")
        values = {n: _log(n, v) for n, v in zip(names, (batch, block, inp, wgt, acc), strict=True)}
        sizes = (f"log_{memory}_buff_size" for memory in ("uop", "inp", "wgt", "acc"))
        return VtaConfig(target=target, **values, **dict(zip(sizes, buffers, strict=True)))

    def to_dict(self) -> dict[str, str | int]:
        """The fields as `vta_config.json` names them: TARGET, LOG_BLOCK, ..."""
        return {field.name.upper(): getattr(self, field.name) for field in dataclasses.fields(self)}

    @staticmethod
    def from_dict(fields: Mapping[str, object]) -> "VtaConfig":
        """The inverse of `to_dict`; what is missing has its default, HW_VER is not looked at.

        Raises: InputError for an unknown field, or one of another type.
        """
        known = {field.name.upper(): field for field in dataclasses.fields(VtaConfig)}
        values: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "HW_VER":
                continue
            if name not in known:
                raise InputError(f"VTA: no field {name!r}; there are {', '.join(known)}")
            expected = str if name == "TARGET" else int
            if type(value) is not expected:
                raise InputError(
                    f"VTA: expected {name} to be {'text' if expected is str else 'whole'}; "
                    f"got {value!r}"
                )
            values[known[name].name] = value
        return VtaConfig(**values)


def _log(name: str, value: int) -> int:
    """The exponent of a power of two. Raises: InputError for anything else."""
    if value < 1 or value & (value - 1):
        raise InputError(f"VTA: expected 2**{name} to be a power of two; got {value}")
    return value.bit_length() - 1
