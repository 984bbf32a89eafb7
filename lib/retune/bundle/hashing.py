"""Hashes of a bundle's parts. The one of large weights is taken in a thread of its own.

hashlib lets other threads run meanwhile. SHA-256 is what processors have instructions for: on one
of AMD's (Zen 2) it takes half the time of BLAKE2b, which bundles had alone before.
"""

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread

from retune.bundle.manifest import Algorithm
from retune.bundle.weights import forget_pages

_BLOCK_BYTES = 1 << 22
"""Of a file that are in memory at once while it is hashed."""
_BLAKE2B_BYTES = 16


def hash_of(data: memoryview, algorithm: Algorithm, stopped: Event | None = None) -> str:
    """The hash of all of `data` in hexadecimal, or of a part once it is `stopped`."""
    if algorithm == "sha256":
        digest = hashlib.sha256()
    else:
        digest = hashlib.blake2b(digest_size=_BLAKE2B_BYTES)
    for at in range(0, len(data), _BLOCK_BYTES):
        if stopped is not None and stopped.is_set():
            break
        block = data[at : at + _BLOCK_BYTES]
        digest.update(block)
        forget_pages(block)
    return digest.hexdigest()


@contextmanager
def hashing(data: memoryview, algorithm: Algorithm) -> Generator[Callable[[], str]]:
    """A call that waits for the hash of `data`, which a thread takes during the context."""
    stopped, found = Event(), list[str]()
    thread = Thread(target=lambda: found.append(hash_of(data, algorithm, stopped)), daemon=True)
    thread.start()

    def digest() -> str:
        thread.join()
        return found[0]

    try:
        yield digest
    finally:
        stopped.set()
        thread.join()
