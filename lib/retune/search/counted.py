"""The choice between kernels behind counts from host steps, and leaving it to the host.

Read `counted_network`. The host does what stands behind a count in one last step. Kernels do the
work itself faster, but the host waits for the device at each step that finds a count.
"""

from collections.abc import Callable, Sequence
from math import isqrt, prod

from retune.core.dims import Size, apart, most, note
from retune.core.dtypes import itemsize
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import Program
from retune.ops.registry import HOST
from retune.search.alternatives import covering_counts
from retune.search.extract import Network
from retune.search.layout.views import find_views
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate

_FEW = 1 << 10
"""Counts are far below larger bounds as a rule: taken for the mean of both, by factors."""
_HOST_BYTES, _HOST_FLOPS = 2e9, 5e9
"""What numpy moves, and computes, in a second, on a core of an AMD EPYC."""
_KERNEL_SHARE = 0.2
"""Of that time, for kernels."""
_MOST_TASKS, _MOST_BYTES = 128, 1 << 29
"""Behind counts, of networks that are taken in so."""
_WAKE_S, _STEP_S = 50e-6, 150e-6
"""To start kernels once more, and for a host step with the waits around it."""


def counted_network(make: Callable[[bool], Network]) -> Network:
    """What `make` makes with counts as sizes, if kernels can serve all counts, and are faster and
    not much larger by estimate.

    Otherwise that without.
    """
    with apart() as assumed:
        network = make(True)
        find_views(network, GENERIC_CPU)
    tasks = [placed.counted for placed in network.groups if placed.counted is not None]
    decided = not any(condition.counted for condition in assumed.conditions)
    counts = any(size.counted for size in network.graph.sizes)
    if counts and not (decided and gain_s(network) > 0 and _can_serve(tasks)):
        return make(False)
    note(assumed.conditions)
    return network


def _can_serve(tasks: Sequence[Task]) -> bool:
    """Whether default schedules serve all counts, in memory that is within reason."""
    largest = sum(most(prod(t.shape) * itemsize(t.dtype)) for k in tasks for t in k.dag.outputs)
    if len(tasks) > _MOST_TASKS or largest > _MOST_BYTES:
        return False

    def schedules(task: Task) -> list[Program]:
        space = task.space(GENERIC_CPU)
        return [space.instantiate(default_candidate(space, GENERIC_CPU))]

    try:
        for task in tasks:
            with apart():
                covering_counts(task.counts, 1, lambda task=task: schedules(task))
    except InputError:  # too many kernels would be needed
        return False
    return True


def gain_s(network: Network) -> float:
    """Seconds of a run that kernels behind counts save, by estimate."""
    tasks = [placed.counted for placed in network.groups if placed.counted is not None]
    usual = [task.at({size.name: _usual(size) for size in task.sizes}) for task in tasks]
    host_s = sum(t.least_bytes / _HOST_BYTES + t.flops / _HOST_FLOPS for t in usual)
    steps = sum(node.op == HOST for node in network.graph.nodes)
    return host_s * (1 - _KERNEL_SHARE) - _WAKE_S - _STEP_S * (steps - 1)


def _usual(size: Size) -> int:
    """Of sizes of inputs the middle of the range: all programs of a network decide alike."""
    if not size.counted:
        return isqrt(max(1, size.least) * size.most)
    return size.most if size.most <= _FEW else isqrt(_FEW * size.most)
