"""What a flow's body returned or raised outlives the server that was to hear of it."""

import httpx
import pytest

import retune.prefect.server
from retune.core.errors import InputError
from retune.prefect.launch import run_flow
from retune.prefect.server import ServerError
from retune.prefect.surviving import kept, surviving


@kept
def body(number: int) -> int:
    if number < 0:
        raise InputError("expected a number above 0")
    return number


def lost() -> None:
    raise httpx.ConnectError("refused")


def flow(number: int) -> int:
    """As Prefect's engine reports the end of a run to a server that is gone."""
    try:
        body(number)
    except InputError:
        lost()
    lost()
    return 0


def test_what_the_body_returned_is_the_result():
    assert surviving(lambda: flow(7)) == 7


def test_what_the_body_raised_is_raised():
    with pytest.raises(InputError, match="above 0"):
        surviving(lambda: flow(-1))


def test_a_flow_that_did_not_begin_has_no_result():
    with pytest.raises(httpx.ConnectError):
        surviving(lost)


def test_a_server_that_never_answered_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retune.prefect.server, "configured_api", lambda: "http://127.0.0.1:9/api")
    with pytest.raises(ServerError, match=r"server http://127\.0\.0\.1:9/api does not answer"):
        run_flow(lost)


def test_a_flow_within_a_flow_has_its_own_result():
    def outer() -> int:
        assert surviving(lambda: flow(1)) == 1
        lost()
        return 0

    with pytest.raises(httpx.ConnectError):
        surviving(outer)
