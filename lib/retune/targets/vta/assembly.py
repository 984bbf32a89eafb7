"""Instructions as text, and back: an instruction a line, every field by its name.

Read `disassemble` and `assemble`, which are inverse to each other::

    load.inp sram=0 dram=256 size=4x56 stride=56 pad=1,0,1,1 pop_next push_next
    gemm uops=0:144 loops=14x28 dst=28,1 src=30,1 wgt=0,0 pop_prev
    alu.shr uops=144:145 loops=1x448 dst=0,1 src=0,1 imm=8 push_next

`size` is rows by columns, pads are top, bottom, left and right, pairs are of the outer and the
inner loop. What follows `#` is a comment; a number with a colon before an instruction is not read.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from retune.core.errors import InputError
from retune.targets.vta.isa import (
    ALU_OPS,
    FIELDS,
    INSTRUCTION,
    MEMORIES,
    MICRO_OP,
    OPCODES,
    TOKENS,
    named,
)

_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
"""Nothing of an instruction is longer."""
_GROUPS: Mapping[str, tuple[tuple[str, ...], str]] = {
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


def assemble(text: str) -> np.ndarray:
    """The instructions of a text. isa.INSTRUCTION [n]

    Raises: InputError naming the line, what was expected there and what was found.
    """
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words and re.fullmatch(r"\d+:", words[0]):
            words = words[1:]
        if words:
            fields = _fields(number, words)
            rows.append(tuple(fields.get(name, 0) for name in FIELDS))
    return np.array(rows, INSTRUCTION)


def disassemble_uops(uops: np.ndarray) -> str:
    """A line for each micro-op: `dst=0 src=4 wgt=1`."""
    return "".join(f"dst={dst} src={src} wgt={wgt}\n" for dst, src, wgt in uops.tolist())


def assemble_uops(text: str) -> np.ndarray:
    """The inverse of `disassemble_uops`. isa.MICRO_OP [n]. Raises: InputError naming the line."""
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].strip()
        if not words:
            continue
        found = re.fullmatch(r"dst=(\d{1,18})\s+src=(\d{1,18})\s+wgt=(\d{1,18})", words, re.ASCII)
        if found is None:
            raise _wrong(number, "a micro-op such as dst=0 src=4 wgt=1", words)
        rows.append(tuple(map(int, found.groups())))
    return np.array(rows, MICRO_OP)


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
    fields, between = _GROUPS[name]
    return f"{name}={between.join(str(entry[field]) for field in fields)}"


def _fields(number: int, words: list[str]) -> dict[str, int]:
    head, _, kind = words[0].partition(".")
    if head not in OPCODES:
        raise _wrong(number, f"one of {', '.join(OPCODES)}", words[0])
    form = _FORMS[head]
    fields = {"opcode": OPCODES.index(head), **_kind(number, head, kind)}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals and (name in TOKENS or (name == "reset" and name in form.more)):
            fields[name] = 1
            continue
        if name not in (*form.groups, *form.more) or name not in _GROUPS:
            raise _wrong(number, f"{', '.join((*form.groups, *TOKENS))} of {head}", word)
        fields.update(_values(number, name, value))
        fields.update({"use_imm": 1} if name == "imm" else {})
    missing = [name for name in form.groups if _GROUPS[name][0][0] not in fields]
    if missing:
        raise _wrong(number, f"{', '.join(missing)} of {head}", " ".join(words))
    return fields


def _kind(number: int, head: str, kind: str) -> dict[str, int]:
    """What the word behind the dot says."""
    form = _FORMS[head]
    if kind in form.kinds:
        return {form.kind: form.kinds.index(kind)}
    if "" in (form.kinds or ("",)):  # there need not be one
        if kind:
            expected = " or ".join(f"{head}.{one}".rstrip(".") for one in form.kinds) or head
            raise _wrong(number, expected, f"{head}.{kind}")
        return {}
    if not re.fullmatch(r"\d{1,18}", kind, re.ASCII):
        raise _wrong(number, f"one of {', '.join(form.kinds)}", repr(kind))
    return {form.kind: int(kind)}


def _values(number: int, name: str, value: str) -> dict[str, int]:
    fields, between = _GROUPS[name]
    parts = value.split(between) if between else [value]
    if len(parts) != len(fields) or not all(map(_INTEGER.fullmatch, parts)):
        shape = between.join(["N"] * len(fields))
        raise _wrong(number, f"{name}={shape}", f"{name}={value}")
    return dict(zip(fields, map(int, parts), strict=True))


def _wrong(number: int, expected: str, got: str) -> InputError:
    return InputError(f"line {number}: expected {expected}; got {got}")
