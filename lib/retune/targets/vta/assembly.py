"""Instructions as text: an instruction a line, every field by its name.

Read `disassemble`, from whose text every field can be read again::

    load.inp sram=0 dram=256 size=4x56 stride=56 pad=1,0,1,1 pop_next push_next
    gemm uops=0:144 loops=14x28 dst=28,1 src=30,1 wgt=0,0 pop_prev
    alu.shr uops=144:145 loops=1x448 dst=0,1 src=0,1 imm=8 push_next

`size` is rows by columns, pads are top, bottom, left and right, pairs are of the outer and the
inner loop.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from retune.targets.vta.isa import (
    ALU_OPS,
    FIELDS,
    MEMORIES,
    OPCODES,
    TOKENS,
    named,
)

GROUPS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "sram": (("sram_base",), ""),
    "dram": (("dram_base",), ""),
    "size": (("y_size", "x_size"), "x"),
    "stride": (("x_stride",), ""),
    "pad": (("y_pad_top", "y_pad_bottom", "x_pad_left", "x_pad_right"), ","),
    "uops": (("uop_begin", "uop_end"), ":"),
    "loops": (("iter_out", "iter_in"), "x"),
    "dst": (("dst_out", "dst_in"), ","),
    "src": (("src_out", "src_in"), ","),
    "wgt": (("wgt_out", "wgt_in"), ","),
    "imm": (("imm",), ""),
    "unused": (("imm",), ""),
}
"""Name in the text -> fields, and what is between them. An immediate that is not used is `unused`.
"""
_MEMORY = ("sram", "dram", "size", "stride", "pad")
_LOOPS = ("uops", "loops", "dst", "src")


class _Form(NamedTuple):
    """How the instructions of an opcode are written."""

    groups: tuple[str, ...] = ()
    """What each has."""
    kind: str = ""
    """The field that the word behind the dot is a number of."""
    kinds: tuple[str, ...] = ()
    """Its values by name; the first is not written if it is empty."""
    more: tuple[str, ...] = ()
    """Groups and flags that it may have besides."""


_FORMS: Mapping[str, _Form] = {
    "load": _Form(_MEMORY, "memory_type", MEMORIES),
    "store": _Form(_MEMORY, "memory_type", MEMORIES),
    "gemm": _Form((*_LOOPS, "wgt"), "reset", ("", "reset")),
    "alu": _Form(_LOOPS, "alu_op", ALU_OPS, ("reset", "imm", "unused")),
    "finish": _Form(),
}


def disassemble(instructions: np.ndarray, *, numbered: bool = False) -> str:
    """A line for each instruction, with its number before it if it is wanted."""
    lines: list[str] = []
    for number, row in enumerate(instructions.tolist()):
        text = _line(dict(zip(FIELDS, row, strict=True)))
        lines.append(f"{number:5d}: {text}" if numbered else text)
    return "".join(f"{line}\n" for line in lines)


def disassemble_uops(uops: np.ndarray) -> str:
    """A line for each micro-op: `dst=0 src=4 wgt=1`."""
    return "".join(f"dst={dst} src={src} wgt={wgt}\n" for dst, src, wgt in uops.tolist())


# -- a line ------------------------------------------------------------------------------------


def _line(entry: Mapping[str, int]) -> str:
    form = _FORMS[OPCODES[entry["opcode"]]]
    words = [named(entry), *(_group(entry, name) for name in form.groups)]
    if form.more:
        words += ["reset"] if entry["reset"] else []
        if entry["use_imm"] or entry["imm"]:
            words.append(_group(entry, "imm" if entry["use_imm"] else "unused"))
    return " ".join([*words, *(name for name in TOKENS if entry[name])])


def _group(entry: Mapping[str, int], name: str) -> str:
    fields, between = GROUPS[name]
    return f"{name}={between.join(str(entry[field]) for field in fields)}"
