"""Somebody who wants more of a farm than it gives: `python intruder.py ADDRESS CERTS DEED`.

Knows Dask, and nothing of retune but the name of its one function. Prints how the deed ended.
"""

import asyncio
import os
import pickle
import socket
import struct
import sys
from pathlib import Path

from distributed import Client, Security
from distributed.comm import connect
from distributed.protocol.serialize import ToPickle

ADDRESS, CERTS, DEED, PROOF = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]


class Bomb:
    """Unpickling it runs a command."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {PROOF}",)


def security() -> Security:
    role = {"cert": str(CERTS / "cert.pem"), "key": str(CERTS / "key.pem")}
    named = {f"tls_client_{what}": path for what, path in role.items()}
    return Security(tls_ca_file=str(CERTS / "ca.pem"), require_encryption=True, **named)


def client(address: str = ADDRESS) -> Client:
    options = {"security": security()} if address.startswith("tls") else {}
    return Client(address, timeout=5, **options)


def job(payload: object) -> object:
    """What a board says to the payload."""
    from retune.device.remote.work import carry_out

    with client() as opened:
        resource = next(iter(next(iter(opened.scheduler_info()["workers"].values()))["resources"]))
        return opened.submit(carry_out, payload, pure=False, resources={resource: 1}).result(60)


def submit(function: object, *arguments: object) -> object:
    with client() as opened:
        return opened.submit(function, *arguments, pure=False).result(30)


async def say(address: str, message: dict[str, object], reply: bool = True) -> object:
    comm = await connect(address, **security().get_connection_args("client"))
    await comm.write(message)
    answer = await asyncio.wait_for(comm.read(), 10) if reply else None
    await comm.close()
    return answer


def board() -> str:
    """Its address, which members learn from each other."""
    return sys.argv[5]


def raw(data: bytes) -> bytes:
    """What the scheduler says to bytes that are no message."""
    host, port = ADDRESS.removeprefix("tls://").rsplit(":", 1)
    context = security().get_connection_args("client")["ssl_context"]
    plain = socket.create_connection((host, int(port)), 10)
    with context.wrap_socket(plain) as stream:
        stream.sendall(data)
        stream.settimeout(10)
        while stream.recv(4096):
            pass
    return b"closed"


async def stream(message: object) -> object:
    """The message, over the stream of a client that has registered."""
    comm = await connect(ADDRESS, **security().get_connection_args("client"))
    await comm.write({"op": "register-client", "client": "x", "reply": False, "versions": {}})
    await comm.read()
    await comm.write(message)
    answer = await asyncio.wait_for(comm.read(), 10)
    comm.abort()
    return answer


DEEDS = {
    "plain": lambda: client(ADDRESS.replace("tls", "tcp")),
    "foreign": client,
    "function": lambda: submit(os.system, f"touch {PROOF}"),
    "closure": lambda: submit(lambda: Path(PROOF).touch()),
    "argument": lambda: job(Bomb()),
    "garbage": lambda: job(b"no job at all"),
    "text": lambda: job("no bytes"),
    "oversized": lambda: job(bytes(3 << 20)),
    "run": lambda: asyncio.run(
        say(board(), {"op": "run", "function": pickle.dumps(os.getcwd), "args": pickle.dumps(())})
    ),
    "upload": lambda: asyncio.run(
        say(board(), {"op": "upload_file", "filename": "x.py", "data": b"1", "load": True})
    ),
    "scheduler": lambda: asyncio.run(
        say(ADDRESS, {"op": "run_function", "function": pickle.dumps(os.getcwd)})
    ),
    "message": lambda: asyncio.run(say(board(), {"op": "ping", "x": ToPickle(Bomb())})),
    "stream": lambda: asyncio.run(
        say(ADDRESS, {"op": "register-client", "client": "x", "x": ToPickle(Bomb())})
    ),
    "direct": lambda: asyncio.run(say(board(), {"op": "ping"})),
    "list": lambda: asyncio.run(say(ADDRESS, [1, 2])),
    "nameless": lambda: asyncio.run(say(ADDRESS, {"operation": "identity"})),
    "arguments": lambda: asyncio.run(say(ADDRESS, {"op": "identity", "nonsense": 1})),
    "half": lambda: asyncio.run(say(ADDRESS, {"op": "register-client", "client": "x"})),
    "unknown": lambda: asyncio.run(stream([{"op": "update-data", "client": "x"}])),
    "graph": lambda: asyncio.run(stream([{"op": "update-graph", "expr_ser": 1}])),
    "bytes": lambda: raw(struct.pack("<Q", 40) + bytes(range(40))),
    "counts": lambda: raw(struct.pack("<QQ", 16, 1 << 60) + bytes(8)),
}

try:
    print("done", DEEDS[DEED]())
except BaseException as error:  # noqa: BLE001  whatever it is, the test reads it
    print("failed", type(error).__name__, str(error).replace("\n", " ")[:300])
