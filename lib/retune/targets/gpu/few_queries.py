"""Attention of a few queries, as a decoder's next token has it, in two kernels.

The first one makes the scores: items of a group take a few keys, whose rows they read once from far
for all queries of a head. In the second one a group takes some columns of the values for one query:
its items find the softmax of the scores, which local memory holds, and then share the keys. So all
units of a device read keys and values, though there are few heads; what groups of one query repeat
are a few hundred powers. Read `few_queries_sketches`.
"""

from functools import partial
from math import gcd

from retune.core.dims import is_fixed
from retune.core.dtypes import FLOAT32
from retune.core.target import DeviceSpec
from retune.graph.passes.attention import MOST_FEW_QUERIES
from retune.ir.expr import const
from retune.ir.stmt import Program
from retune.schedule.attention import AttentionStages
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.fusion import inline_elementwise, legal_sketches, results_of, schedule_rest
from retune.targets.gpu.attention import attention_of, inline_movements
from retune.targets.gpu.limits import keep_to_limits
from retune.targets.gpu.plain import schedule_plain
from retune.targets.gpu.rows import combine, share_columns, sum_in_parts
from retune.targets.tiling import fuse_all

_HELD = 3
"""Rows in local memory: powers and weights of the keys, and what sums need."""
_KEYS = 32
"""Of a group that makes scores: a warp."""
_QUERIES = 2
"""Of an item, in its registers."""
_READ, _UNROLLED = 4, 8
"""Elements of a key's row that an item reads at once, and such reads that are under way at once."""
_COLUMNS = 16
"""Of values, that a group makes."""
_PARTS = (4, 8, 16, 32)
"""Items that share a column's keys: as many as a group has room for, which wait less often."""


def most_keys(spec: DeviceSpec) -> int:
    """Whose scores a group holds; 0 where the device does not compute few queries so."""
    if spec.device_class != "gpu":
        return 0
    return spec.local_memory_bytes // (_HELD * FLOAT32.itemsize)


def few_queries_sketches(program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    """The sketch; none where the program is not attention of so few."""
    s = Schedule(program)
    found = attention_of(s)
    if found is None:
        return ()
    queries = s.extent(found.row.name)
    if not is_fixed(queries) or queries > MOST_FEW_QUERIES:
        return ()
    rule = partial(_schedule, spec=spec)
    return legal_sketches(program, [("gpu.attention.few", rule)])


def _schedule(s: Schedule, spec: DeviceSpec) -> None:
    """All stages as two kernels."""
    found = attention_of(s)
    assert found is not None, "the rule was asked whether it fits"
    inline_movements(s, found)
    inline_elementwise(s, kept={found.out.name, *(stage.name for stage in found.before)})
    _make_scores(s, found)
    _sum_values(s, found, spec)
    plain = partial(schedule_plain, s, spec=spec)
    schedule_rest(s, plain, plain)
    keep_to_limits(s, spec)


def _make_scores(s: Schedule, found: AttentionStages) -> None:
    """A key, and some queries of its head, for each item."""
    name = found.scores.name
    *heads, query, key = s.loops(results_of(s, name))
    groups, item = s.split(key, [_KEYS], "guard")
    others, query = s.split(query, [gcd(_QUERIES, s.extent(query))])
    s.reorder(*heads, groups, others, item, query)
    s.compute_at(name, item)
    own = [n for n in s.loops(name) if n in s.axes(name)]
    steps = s.split(s.reduce_loops(name)[0], [_READ])
    accumulate_in_registers(s, steps, own, 1)
    s.vectorize(steps[1])
    s.unroll(query)
    s.unroll(steps[0], _UNROLLED)
    s.bind(item, "local.0")
    s.bind(others, "local.1")
    s.bind(fuse_all(s, [*heads, groups]), "group.0")


def _sum_values(s: Schedule, found: AttentionStages, spec: DeviceSpec) -> None:
    """Softmax and sums of some columns of one query in a group."""
    name = found.out.name
    fit = [n for n in _PARTS if n * _COLUMNS <= spec.max_work_group]
    parts = const(max(fit, default=min(_PARTS)))
    groups = sum_in_parts(s, name, _COLUMNS, parts)
    grid = parts, const(_COLUMNS)
    for stage in (found.weights, found.total, found.powers, found.largest):
        if stage.reducer is None:
            s.compute_at(stage.name, groups[-1], "local")
            share_columns(s, s.loops(stage.name)[-1], grid)
        else:
            combine(s, [stage.name], grid, groups[-1])
    s.bind(fuse_all(s, groups), "group.0")
