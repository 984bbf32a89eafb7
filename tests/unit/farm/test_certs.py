"""A farm's authority and certificates."""

import ssl
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from retune.core.errors import InputError
from retune.device.farm.security import check_certs, security_of
from retune.farm.certs import make_certs


def shook_hands(server: Path, client: Path) -> bool:
    """Whether both sides trust each other, as distributed has them check it."""
    ours, theirs = security_of("tls://h:1", server), security_of("tls://h:1", client)
    assert ours is not None
    assert theirs is not None
    listening = ours.get_listen_args("scheduler")["ssl_context"]
    connecting = theirs.get_connection_args("client")["ssl_context"]
    assert listening.verify_mode == connecting.verify_mode == ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = listening.wrap_bio(up, down, server_side=True)
    other = connecting.wrap_bio(down, up, server_side=False)
    waiting = [other, one]
    try:
        for _ in range(6):
            for side in list(waiting):
                try:
                    side.do_handshake()
                    waiting.remove(side)
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError:
        return False
    return not waiting


def test_members_trust_each_other_and_nobody_else(tmp_path: Path):
    made = make_certs(tmp_path / "farm")
    assert [home.name for home in made] == ["scheduler", "board", "client"]
    (stranger,) = make_certs(tmp_path / "other", ["client"])
    assert shook_hands(made[0], made[1])
    assert shook_hands(made[0], made[2])
    assert not shook_hands(made[0], stranger)
    assert not shook_hands(stranger, made[2])


def test_keys_are_for_their_owner_alone_and_stay(tmp_path: Path):
    make_certs(tmp_path, ["board"])
    keys = [tmp_path / "ca-key.pem", tmp_path / "board" / "key.pem"]
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]
    before = [path.read_bytes() for path in keys]
    assert make_certs(tmp_path, ["board", "laptop"]) == (tmp_path / "laptop",)
    assert [path.read_bytes() for path in keys] == before
    assert shook_hands(tmp_path / "board", tmp_path / "laptop")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path):
    board, client = make_certs(tmp_path, ["board", "client"])
    check_certs(board)
    (board / "key.pem").write_bytes((client / "key.pem").read_bytes())
    with pytest.raises(InputError, match="expected a certificate and its own private key"):
        check_certs(board)
    (board / "key.pem").unlink()
    with pytest.raises(InputError, match=r"got no key\.pem"):
        check_certs(board)


def test_tls_needs_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("RETUNE_CERTS", raising=False)
    with pytest.raises(InputError, match="expected a folder with the farm's certificates"):
        security_of("tls://farm:1")
    assert security_of("tcp://127.0.0.1:1") is None
    (home,) = make_certs(tmp_path, ["client"])
    monkeypatch.setenv("RETUNE_CERTS", str(home))
    assert security_of("tls://farm:1") is not None


def test_an_authority_that_cannot_be_read_is_left_alone(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(InputError, match="files that cannot be read"):
        make_certs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]
