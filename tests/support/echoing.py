"""What the process of a Child runs in tests: it says again what it is told, or does as it is."""

import os
import pickle
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection

from retune.core.schema import pack, unpack
from retune.core.target import GENERIC_CPU
from retune.device.measure.messages import Ready

MUTE = "closes its connection, and stays"
PICKLED = "answers by a pickle"
"""Requests."""


@dataclass(frozen=True, slots=True)
class Echo:
    """The reply to any other request."""

    pid: int
    request: str


def main(channel: int, lifeline: int, device: str) -> None:
    connection = Connection(channel)
    connection.send_bytes(pack(Ready(spec=GENERIC_CPU)))
    while (request := _request(connection)) != MUTE:
        echo = Echo(os.getpid(), request)
        connection.send_bytes(pickle.dumps(echo) if request == PICKLED else pack(echo))
    connection.close()
    signal.pause()


def _request(connection: Connection) -> str:
    frame = connection.recv_bytes()
    return unpack((str,), frame, len(frame))
