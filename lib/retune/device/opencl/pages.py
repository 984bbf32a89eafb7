"""Host memory in large pages: the same program takes the same time wherever its memory lies.

Which sets of a cache memory competes for follows from its physical address. Small pages get one
each, by chance: two instances of one program differ by 5 % and more. Within a large page, addresses
follow each other, so what lies there competes as it was laid out. One of 2 MB also takes one entry
of translation where 512 small ones take as many. Linux gives them to those who ask
(`/sys/kernel/mm/transparent_hugepage/enabled` says "madvise" on most machines); elsewhere the
memory is ordinary.

`benchmarks.placement`, eight instances on one core, slowest over fastest: in small pages 1.033
(mobilenet) and 1.043 to 1.053 (squeezenet), the same ones slow in even and odd calls (correlation
0.8 to 0.9); with buffers of 2 MB and more in large pages 1.004 and 1.009.
"""

import contextlib
import mmap

import numpy as np

HUGE_BYTES = 1 << 21
"""A large page of x86-64, and of AArch64 with small pages of 4 kB."""
LEAST_BYTES = HUGE_BYTES
"""From so many bytes on a buffer of a CPU has large pages of its own. A smaller one would keep most
of its page to itself: a decoder of 135 M weights in 4 bits has hundreds of such buffers."""


def in_huge_pages(size_bytes: int) -> np.ndarray:
    """So many zeros, uint8, from an address that is a multiple of HUGE_BYTES.

    A page is there once something was written to it. `size_bytes` is positive. Raises: OSError if
    the system has not as much memory.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size_bytes + HUGE_BYTES, flags=private)
    with contextlib.suppress(AttributeError, OSError):  # systems without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    first = -whole.ctypes.data % HUGE_BYTES
    return whole[first : first + size_bytes]
