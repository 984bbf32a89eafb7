"""What the process of a Child runs in tests: it says again what it is told, or does as it is."""

import os
import signal
from multiprocessing.connection import Connection

from retune.core.target import GENERIC_CPU
from retune.device.measure.messages import Ready

MUTE = "closes its connection, and stays"
"""A request."""


def main(channel: int, lifeline: int, device: str) -> None:
    connection = Connection(channel)
    connection.send(Ready(spec=GENERIC_CPU))
    while (request := connection.recv()) != MUTE:
        connection.send((os.getpid(), request))
    connection.close()
    signal.pause()
