"""A server that does not answer: asked seldom, said once, and no run ends for it."""

import logging
import ssl

import httpx
import pytest

LOST, BACK = "does not answer", "were left out"


class Server:
    """A clock, and a server that answers or not."""

    def __init__(self) -> None:
        from retune.prefect.contact import Contact

        self.now = 0.0
        self.answers = False
        self.asked = 0
        self.contact = Contact(lambda: self.now)

    def ask(self) -> int | None:
        def question(_: object) -> int:
            self.asked += 1
            if not self.answers:
                raise httpx.ConnectError("refused")
            return self.asked

        return self.contact.ask(question)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Server:
    from contextlib import nullcontext

    from retune.prefect import contact

    monkeypatch.setattr(contact, "get_client", lambda *_, **__: nullcontext())
    return Server()


def lines(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_a_server_that_is_gone_is_asked_less_and_less(
    asked: Server, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO, "retune"):
        for second in range(600):
            asked.now = float(second)
            assert asked.ask() is None
    assert asked.contact.lost
    assert 8 <= asked.asked <= 15  # 0, 5, 15, 35, 75, then once a minute
    assert lines(caplog, LOST) == 1


def test_a_server_that_comes_back_is_used_again(asked: Server, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "retune"):
        asked.ask()
        asked.answers, asked.now = True, 100.0
        assert asked.ask() == 2
        assert asked.ask() == 3
    assert not asked.contact.lost
    assert (lines(caplog, LOST), lines(caplog, BACK)) == (1, 1)


def test_what_the_server_refuses_does_not_lose_it(asked: Server):
    def refused(_: object) -> None:
        raise LookupError("no such flow run")

    assert asked.contact.ask(refused) is None
    assert not asked.contact.lost


def test_a_dead_server_is_asked_without_retries(monkeypatch: pytest.MonkeyPatch):
    """The client's own retries would wait for a minute; those of its transport, for 1.5 s."""
    import anyio
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from retune.prefect.contact import Contact

    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(anyio, "sleep", lambda _: pytest.fail("the client waits itself"))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        contact = Contact()
        assert contact.ask(lambda client: client.read_flow_runs()) is None
    assert contact.lost
    assert sum(slept) < 2


@pytest.mark.parametrize("lost", [True, False])
def test_nothing_waits_for_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch, lost: bool):
    """A process would try each event for seconds before it ends."""
    from queue import Queue

    from prefect.events.worker import EventsWorker

    from retune.prefect import contact

    class Gone(contact.Contact):
        lost = property(lambda _: lost)

    worker = EventsWorker.__new__(EventsWorker)
    worker._queue = Queue()
    for number in range(100):
        worker._queue.put(number)
    monkeypatch.setattr(EventsWorker, "_instances", {1: worker})
    monkeypatch.setattr(contact, "SERVER", Gone())
    contact.forget_pending()
    assert worker._queue.qsize() == (0 if lost else 100)
    assert worker._queue.unfinished_tasks == worker._queue.qsize()


@pytest.mark.parametrize(("scheme", "reads"), [("http", False), ("https", True)])
def test_certificates_are_read_only_where_a_server_has_one(
    monkeypatch: pytest.MonkeyPatch, scheme: str, reads: bool
):
    """Those of all authorities take longer than a request."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from retune.prefect.contact import Contact

    read = list[dict[str, object]]()

    def context(**given: object) -> ssl.SSLContext:
        read.append(given)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(ssl, "create_default_context", context)
    with temporary_settings({PREFECT_API_URL: f"{scheme}://127.0.0.1:9/api"}):
        assert Contact().ask(lambda client: str(client.api_url)).startswith(scheme)
    assert bool(read) == reads
