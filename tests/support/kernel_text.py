"""Kernels as people read them, for goldens: a renderer whose values are their own text."""

from collections.abc import Sequence

from retune.codegen import kernel as ir
from retune.codegen.printing import Printer, Renderer


def _array(s: ir.Array, to: Printer) -> list[str]:
    return [f"{s.memory.scope} {s.memory.name}[{s.elements}]"]


def _prefetch(s: ir.Prefetch, to: Printer) -> list[str]:
    return [f"prefetch{' later' if s.later else ''} {s.at} + {s.beyond}"]


def _if(s: ir.If, to: Printer) -> list[str]:
    otherwise = ["else:", *to.inside(s.otherwise)] if s.otherwise else []
    return [f"if {' and '.join(map(str, s.tests))}:", *to.inside(s.then), *otherwise]


READABLE = Renderer(
    values={
        kind: lambda v, to: str(v) for kind in (ir.Name, ir.Literal, ir.MemoryLoad, ir.Operation)
    },
    statements={
        ir.Declare: lambda s, to: [f"let {s.name} = {s.value}"],
        ir.Registers: lambda s, to: [f"registers {', '.join(map(str, s.names))}"],
        ir.Array: _array,
        ir.SubArray: lambda s, to: [f"{s.memory.scope} {s.memory.name} from byte {s.first}"],
        ir.Assign: lambda s, to: [f"{' = '.join(map(str, s.targets))} = {s.value}"],
        ir.Store: lambda s, to: [f"{s.at} = {s.value}"],
        ir.Wait: lambda s, to: ["barrier"],
        ir.Prefetch: _prefetch,
        ir.Number: lambda s, to: [f"let {s.name} = {s.kind}.{s.axis}  # of {s.extent}"],
        ir.ForLoop: lambda s, to: [f"for {s.name} in range({s.extent}):", *to.inside(s.body)],
        ir.If: _if,
    },
    kernel=lambda kernel, body: body,
)


def shown(statements: Sequence[ir.Statement]) -> str:
    """The statements as lines to be read."""
    return "\n".join(Printer(READABLE).lines(statements))
