"""A pickle may name what a submission of bytes is made of, and nothing else."""

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed.comm.core import CommClosedError

from retune.core.errors import InputError
from retune.device.remote import restricted_unpickler
from retune.device.remote.revoked import REVOKED, Revoked
from retune.device.remote.security import PEERS, Role
from retune.device.remote.wire import RefusedError
from retune.device.remote.work import carry_out


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "value",
    [Bomb(), [b"x", Bomb()], os.getcwd, partial(carry_out, b""), ValueError("x"), print, {1: set}],
)
def test_anything_else_is_refused(value: object, caplog: pytest.LogCaptureFixture):
    with pytest.raises(RefusedError, match=r"that names .*; only batches of kernels are taken"):
        restricted_unpickler._loads(pickle.dumps(value))
    (line,) = caplog.messages
    assert line.startswith("refused: a message that names ")


@pytest.mark.parametrize("value", [carry_out, b"x", "x", {"a": (1, 2.0, None)}, [True, {3}]])
def test_plain_data_and_the_one_function_are_read(value: object):
    assert restricted_unpickler._loads(pickle.dumps(value)) == value


def test_no_memory_is_asked_for_by_a_number():
    """`bytes(n)` makes n zeros, however short the message is."""
    for argument in ("I1099511627776\n", "(lI1\na"):
        bomb = f"cbuiltins\nbytes\n({argument}tR.".encode()
        with pytest.raises(RefusedError, match="for bytes"):
            restricted_unpickler._loads(bomb)
    assert type(restricted_unpickler._loads(b"cbuiltins\nbytes\n(tR.")) is bytes
    assert issubclass(
        restricted_unpickler._loads(pickle.dumps(bytes)), bytes
    )  # heads of messages name types


CLOSED = """
import pickle, sys
from retune.device.remote.restricted_unpickler import restrict_unpickling
restrict_unpickling("board", 1000)
import distributed.protocol.pickle as ours
from distributed.protocol.compression import compressions
assert not any(compressions), compressions
strangers = [
    name for name, module in sys.modules.items()
    if name.startswith("distributed") and getattr(module, "pickle", None) is pickle
    and not name.startswith("distributed.shuffle")
]
assert not strangers, strangers
try:
    ours.loads(pickle.dumps(print))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.process
def test_the_door_is_closed_for_the_whole_process():
    """No module of distributed that takes part reads pickles in another way."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "RefusedError", done.stderr


class Comm:
    """A connection whose other side has the certificate of that role."""

    def __init__(self, role: str) -> None:
        field = ((("commonName", "retune x"),), (("organizationalUnitName", role),))
        subject = field if role else field[:1]
        self.extra_info = {"peercert": {"subject": subject, "serialNumber": "0AB12F"}}
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("client", "board"),
        ("client", "client"),
        ("board", "client"),
        ("board", "board"),
        ("scheduler", "scheduler"),
        ("scheduler", ""),
    ],
)
def test_who_has_nothing_to_do_here_is_sent_away(
    own: Role, other: str, caplog: pytest.LogCaptureFixture
):
    comm = Comm(other)
    with pytest.raises(CommClosedError):
        restricted_unpickler._peer(own, comm)
    (line,) = caplog.messages
    assert line.startswith(f"refused: a connection with the certificate of a {other or 'stranger'}")
    assert comm.aborted


def test_members_are_who_their_certificates_say():
    for own, others in PEERS.items():
        assert {restricted_unpickler._peer(own, Comm(other)) for other in others} == others
    assert restricted_unpickler._peer("scheduler", type("Plain", (), {"extra_info": {}})()) == ""


def test_who_was_revoked_is_sent_away_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    revoked, comm = Revoked(tmp_path), Comm("board")
    restricted_unpickler._check_valid(comm, revoked)
    (tmp_path / REVOKED).write_text('{"FF": "another"}')
    restricted_unpickler._check_valid(comm, revoked)
    (tmp_path / REVOKED).write_text('{"FF": "another", "AB12F": "rk3399-7"}')
    with pytest.raises(CommClosedError):
        restricted_unpickler._check_valid(comm, revoked)
    with pytest.raises(CommClosedError):
        restricted_unpickler._check_valid(Comm("board"), revoked)
    (line,) = caplog.messages
    assert line.startswith("refused: a connection: the certificate of 'rk3399-7' was revoked; ")
    assert comm.aborted
    restricted_unpickler._check_valid(type("Plain", (), {"extra_info": {}})(), revoked)


@pytest.mark.parametrize("text", ["", "[]", '{"AB12F": 7}', "[" * 100_000, "\x00"])
def test_a_list_that_is_none_lets_nobody_in(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    revoked = Revoked(tmp_path)
    (tmp_path / REVOKED).write_text(text)
    for _ in range(2):
        with pytest.raises(CommClosedError):
            restricted_unpickler._check_valid(Comm("board"), revoked)
    (line,) = caplog.messages
    assert "nobody can be let in: " in line and "\n" not in line
    with pytest.raises(InputError):
        Revoked(tmp_path)
    (tmp_path / REVOKED).unlink()
    restricted_unpickler._check_valid(Comm("board"), revoked)


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        ("board", {"op": "register-client"}),
        ("board", [{"op": "task-finished"}, {"op": "update-graph"}]),
        ("board", {"op": "gather"}),
        ("client", {"op": "register-worker"}),
        ("client", ({"op": "task-finished"},)),
        ("client", {"op": ["register-client"]}),
        ("client", {"op": "run_function"}),
    ],
)
def test_nobody_says_what_is_anothers(peer: str, message: object, caplog: pytest.LogCaptureFixture):
    comm = Comm(peer)
    with pytest.raises(CommClosedError):
        restricted_unpickler._check_said(comm, peer, message)
    assert f", a {peer}; it has no right to it" in caplog.messages[0]
    assert comm.aborted


def test_what_is_said_in_a_farm_may_be_said():
    for peer, said in (
        ("board", restricted_unpickler.BOARDS_SAY),
        ("client", restricted_unpickler.CLIENTS_SAY),
    ):
        for operation in said:
            restricted_unpickler._check_said(Comm(peer), peer, {"op": operation})
        restricted_unpickler._check_said(Comm(peer), peer, [{"status": "OK"}, "OK", b"x", 1])
