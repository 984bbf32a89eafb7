"""The part of an exported program's header that is about states: which they are, how they grow.

Read `state_lines`. Where a network has no states, the header has nothing of it.
"""

from collections.abc import Iterator
from math import prod

from retune.bundle.export.sizes import function, table
from retune.bundle.plan import NetworkPlan
from retune.codegen.network.extents import extent_text, variable
from retune.core.dims import Dim
from retune.core.dtypes import DType

DECLARATIONS = """
struct session;

/* Calls in a row whose states stay on the device: zeros at first, and what grows is empty. NULL if
   that fails. To be closed before the network, with which it shares all else. */
struct session *session_open(struct network *network);

/* Runs the network: as network_run, without the sizes that are lengths of states. Pointers for
   states are not looked at. 0, or -1 if that fails, as beyond the capacity; states then stay. */
int session_run(struct session *session, {sizes}const void *const *inputs, void *const *outputs);

/* The length of states that grow. */
int session_length(const struct session *session);

/* States are as at first. */
int session_reset(struct session *session);

/* Gives back what it holds; NULL is allowed. */
void session_close(struct session *session);
"""


def session_lines(plan: NetworkPlan) -> Iterator[str]:
    """Declarations of the functions of sessions, of a network that has them."""
    if plan.has_sessions:
        lengths = _lengths(plan)
        names = [each.size.name for each in plan.sizes if each.size.name not in lengths]
        sizes = "".join(f"int {variable(name)}, " for name in names)
        yield from DECLARATIONS.format(sizes=sizes).splitlines()


def state_lines(plan: NetworkPlan) -> Iterator[str]:
    """Macros, tables and functions for the states; nothing for a network without any."""
    if not plan.states:
        return
    lengths = _lengths(plan)
    names = [each.size.name for each in plan.sizes]
    given = [variable(name) if name not in lengths else "0" for name in names]
    grown = ", ".join("1" if name in lengths else "0" for name in names)
    parameters = "".join(f"int {variable(name)}, " for name in names if name not in lengths)
    yield f"#define STATES {len(plan.states)}"
    yield from ["#define SESSIONS"] if plan.has_sessions else []
    yield f"#define SESSION_PARAMETERS {parameters}".rstrip()
    yield f"#define SESSION_ARGUMENTS {', '.join(given) or '0'}"
    yield "/* Numbers of its input and output, and whether it grows. */"
    yield "struct state {\n  int input, output, grows;\n};"
    yield ""
    rows = [
        (plan.inputs.index(s.input), plan.outputs.index(s.output), int(s.axis is not None))
        for s in plan.states
    ]
    yield from table("struct state states[STATES]", rows)
    yield "/* Which sizes are lengths of states. */"
    yield f"static const int grows[] = {{{grown or '0'}}};"
    yield ""
    after = [f"lengths[{names.index(n)}] = (int)({extent_text(e)});" for n, e in lengths.items()]
    declared = "void next_lengths(const int *values, int *lengths)"
    yield from function(declared, plan, after, "(void)values, (void)lengths;")
    yield from _extents(plan)


def _extents(plan: NetworkPlan) -> Iterator[str]:
    yield "/* Of a state that grows, before and after a call, in the model's order: the extents"
    yield "   before its axis together, that along it, and the bytes behind it. */"
    lines: list[str] = []
    for number, state in enumerate(plan.states):
        for turn, name in enumerate((state.input, state.output)):
            if state.axis is None:
                continue
            kind = plan.type_of(name)
            width = DType(kind.dtype).itemsize
            before, after = kind.shape[: state.axis], kind.shape[state.axis + 1 :]
            three = (prod(before), kind.shape[state.axis], prod(after) * width)
            lines += (
                f"if (state == {number}) extents[{turn}][{n}] = (size_t)({extent_text(extent)});"
                for n, extent in enumerate(three)
            )
    declared = "void count_state(const int *values, int state, size_t (*extents)[3])"
    yield from function(declared, plan, lines, "(void)values, (void)state, (void)extents;")


def _lengths(plan: NetworkPlan) -> dict[str, int]:
    """The sizes that are lengths of states, by name, and these after a call."""
    found: dict[str, int] = {}
    for state in plan.states:
        before, after = (plan.buffer(name).shape for name in (state.input, state.output))
        size = before[0].size if state.axis is not None and isinstance(before[0], Dim) else None
        if size is not None:
            found[size.name] = after[0]
    return found
