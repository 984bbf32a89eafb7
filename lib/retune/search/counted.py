"""Whether kernels run behind counts that host steps find, or the host does all of that.

Read `counted_network`. On the host each operator takes some microseconds, and there is one wait for
the device in place of several: for a few numbers behind the last step that is the faster way.
"""

from collections.abc import Callable

from retune.core.dims import apart, note
from retune.core.target import GENERIC_CPU
from retune.ops.registry import HOST
from retune.search.extract import Network
from retune.search.layout.views import find_views

LEAST_BYTES = 1 << 19
"""Bytes moved, and operations, behind counts that are worth kernels: about what numpy does in the
time of a few launches and waits."""


def counted_network(make: Callable[[bool], Network]) -> Network:
    """What `make` makes with counts as sizes, if kernels serve all counts and have enough to do.

    Otherwise that without.
    """
    with apart() as assumed:
        network = make(True)
        find_views(network, GENERIC_CPU)
    if not any(node.op == HOST for node in network.graph.nodes):
        note(assumed.conditions)
        return network
    decided = not any(condition.counted for condition in assumed.conditions)
    if not decided or network.counted_bytes < LEAST_BYTES:
        return make(False)
    note(assumed.conditions)
    return network
