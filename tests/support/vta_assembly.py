"""An assembler for what `disassemble` writes: what it writes can be read again."""

import re

import numpy as np

from retune.targets.vta.assembly import GROUPS
from retune.targets.vta.isa import ALU_OPS, FIELDS, INSTRUCTION, MEMORIES, MICRO_OP, OPCODES

_KINDS = {
    "load": ("memory_type", MEMORIES),
    "store": ("memory_type", MEMORIES),
    "gemm": ("reset", ("", "reset")),
    "alu": ("alu_op", ALU_OPS),
}
"""Opcode -> the field that the word behind the dot is a number of, and its values by name."""


def assemble(text: str) -> np.ndarray:
    """The instructions of a text, with numbers and comments or without. isa.INSTRUCTION [n]"""
    rows = [line for line in (line.split("#")[0].split() for line in text.splitlines()) if line]
    fields = [_fields(words[1:] if words[0].endswith(":") else words) for words in rows]
    return np.array([tuple(f.get(name, 0) for name in FIELDS) for f in fields], INSTRUCTION)


def _fields(words: list[str]) -> dict[str, int]:
    head, _, kind = words[0].partition(".")
    found = {"opcode": OPCODES.index(head)}
    if kind:
        field, names = _KINDS[head]
        found[field] = names.index(kind) if kind in names else int(kind)
    for word in words[1:]:
        name, equals, value = word.partition("=")
        names = GROUPS[name][0] if equals else (name,)
        numbers = map(int, re.findall(r"-?\d+", value)) if equals else (1,)
        found |= dict(zip(names, numbers, strict=True))
        found |= {"use_imm": 1} if name == "imm" else {}
    return found


def assemble_uops(text: str) -> np.ndarray:
    """The inverse of `disassemble_uops`. isa.MICRO_OP [n]"""
    rows = [tuple(map(int, re.findall(r"\d+", line))) for line in text.splitlines()]
    return np.array(rows, MICRO_OP)
