"""A board connects once in a try, and less often the longer it is refused."""

import asyncio

import pytest

pytest.importorskip("distributed")

from distributed.comm import listen
from distributed.comm.core import CommClosedError

from retune.farm.reconnect import NotLetInError, Pauses, connect_once


def test_pauses_grow_to_a_minute_and_begin_anew_where_nobody_is():
    pauses = Pauses()
    assert [pauses.next_s(closed=True) for _ in range(8)] == [4, 8, 16, 32, 60, 60, 60, 60]
    assert pauses.next_s(closed=False) == 2
    assert pauses.next_s(closed=True) == 4
    for _ in range(10_000):
        pauses.next_s(closed=True)
    assert pauses.next_s(closed=True) == 60


def test_a_connection_that_is_closed_at_once_is_a_refusal():
    connections: list[object] = []

    async def main() -> None:
        async def closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            writer.close()

        server = await asyncio.start_server(closed, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NotLetInError, match="the scheduler closes the connection") as found:
                await connect_once(f"tcp://127.0.0.1:{port}", timeout="60s")
        assert found.value.closed

    asyncio.run(main())
    assert len(connections) == 1


def test_one_that_is_closed_after_the_first_word_is_one_too():
    async def main() -> None:
        async def closed(comm: object) -> None:
            comm.abort()  # type: ignore[attr-defined]

        async with listen("tcp://127.0.0.1", closed) as listener:
            comm = await connect_once(listener.contact_address, timeout="60s")
            with pytest.raises(NotLetInError, match="the scheduler closes the connection"):
                await comm.read()
            with pytest.raises(CommClosedError):
                await comm.read()

    asyncio.run(main())


def test_where_nobody_listens_the_board_is_not_refused():
    async def main() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(NotLetInError, match="no scheduler answers") as found:
            await connect_once(f"tcp://127.0.0.1:{port}", timeout="0.05s")
        assert not found.value.closed

    asyncio.run(main())
