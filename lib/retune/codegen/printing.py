"""Printing of a kernel: one walk, and a table that says how each node is written.

A renderer is that table. Adding one, or an operator to one, touches nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retune.codegen.kernel import Kernel, Statement, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """How kernels are written in a language."""

    values: Mapping[type, Callable[[Any, "Printer"], str]]
    """Type of a value -> its text, as an operand of another."""
    statements: Mapping[type, Callable[[Any, "Printer"], Sequence[str]]]
    """Type of a statement -> its lines."""
    kernel: Callable[[Kernel, list[str]], list[str]]
    """All of a kernel, given the lines of its body."""
    reserved: frozenset[str] = field(default=frozenset(), repr=False)
    """Words that no name may be."""


class Printer:
    """Prints by a renderer's table; its rules ask it for the text of what is inside a node."""

    def __init__(self, renderer: Renderer) -> None:
        self._values = renderer.values
        self._statements = renderer.statements

    def text(self, value: Value) -> str:
        """The value as an operand."""
        return self._values[type(value)](value, self)

    def lines(self, statements: Sequence[Statement]) -> list[str]:
        """The statements in order."""
        rules = self._statements
        return [line for s in statements for line in rules[type(s)](s, self)]

    def inside(self, statements: Sequence[Statement]) -> list[str]:
        """The statements as the body of another."""
        return ["  " + line for line in self.lines(statements)]


def render(kernel: Kernel, renderer: Renderer) -> str:
    """The kernel's text."""
    return "\n".join([*renderer.kernel(kernel, Printer(renderer).lines(kernel.body)), ""])
