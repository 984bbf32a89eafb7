"""A farm's authority and certificates."""

import shutil
import ssl
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("distributed")

from retune.core.errors import InputError
from retune.device.remote.revoked import REVOKED, Revoked, read_revoked
from retune.device.remote.security import Role, _as_others_see_it, check_certs, role_of, security_of
from retune.farm.certs import make_certs, revoke


def role_in(home: Path) -> Role:
    """The role of a folder's certificate, as others see it."""
    return cast("Role", role_of(_as_others_see_it(home)))


def shook_hands(server: Path, client: Path) -> bool:
    """Whether both sides trust each other, as distributed has them check it."""
    ours, theirs = (security_of("tls://h:1", role_in(home), home) for home in (server, client))
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


def test_nobody_takes_a_client_for_a_server(tmp_path: Path):
    scheduler, board, client = make_certs(tmp_path)
    assert shook_hands(board, scheduler)  # it fetches answers there
    for member in (scheduler, board, client):
        assert not shook_hands(client, member)


def test_a_certificate_is_for_one_role(tmp_path: Path):
    homes = make_certs(tmp_path)
    assert [role_in(home) for home in homes] == ["scheduler", "board", "client"]
    with pytest.raises(InputError, match="expected the certificate of a client, got that of a boa"):
        security_of("tls://h:1", "client", homes[1])
    (laptop,) = make_certs(tmp_path, ["laptop"], "client")
    check_certs(laptop, "client")
    with pytest.raises(InputError, match="--name other: expected --role with it"):
        make_certs(tmp_path, ["other"])
    assert not (tmp_path / "other").exists()


def test_a_certificate_of_another_farm_is_no_one_of_this(tmp_path: Path):
    (home,), (other,) = make_certs(tmp_path / "a", ["board"]), make_certs(tmp_path / "b", ["board"])
    (home / "ca.pem").write_bytes((other / "ca.pem").read_bytes())
    with pytest.raises(InputError, match="files that do not belong together"):
        check_certs(home, "board")


def test_keys_are_for_their_owner_alone_and_stay(tmp_path: Path):
    make_certs(tmp_path, ["board"])
    keys = [tmp_path / "ca-key.pem", tmp_path / "board" / "key.pem"]
    assert [path.stat().st_mode & 0o777 for path in keys] == [0o600, 0o600]
    before = [path.read_bytes() for path in keys]
    assert make_certs(tmp_path, ["board", "client"]) == (tmp_path / "client",)
    assert [path.read_bytes() for path in keys] == before
    assert shook_hands(tmp_path / "board", tmp_path / "client")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path):
    board, client = make_certs(tmp_path, ["board", "client"])
    check_certs(board, "board")
    (board / "key.pem").write_bytes((client / "key.pem").read_bytes())
    with pytest.raises(InputError, match="expected a certificate and its own private key"):
        check_certs(board, "board")
    (board / "key.pem").unlink()
    with pytest.raises(InputError, match=r"got no key\.pem"):
        check_certs(board, "board")


def test_tls_needs_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("RETUNE_CERTS", raising=False)
    with pytest.raises(InputError, match="expected a folder with the farm's certificates"):
        security_of("tls://farm:1", "client")
    assert security_of("tcp://127.0.0.1:1", "client") is None
    (home,) = make_certs(tmp_path, ["client"])
    monkeypatch.setenv("RETUNE_CERTS", str(home))
    assert security_of("tls://farm:1", "client") is not None


def test_an_authority_that_cannot_be_read_is_left_alone(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(InputError, match="files that cannot be read"):
        make_certs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]


def test_a_certificate_is_taken_back(tmp_path: Path):
    """In the list beside the authority, and beside each scheduler's certificate."""
    scheduler, board, client = make_certs(tmp_path)
    (second,) = make_certs(tmp_path, ["second"], "scheduler")
    seen = _as_others_see_it(board)
    lists = [Revoked(home) for home in (scheduler, second)]
    assert not any(known.why(seen) for known in lists)
    copies = revoke(tmp_path, ["board"])
    assert set(copies) == {home / REVOKED for home in (tmp_path, scheduler, second)}
    assert [known.why(seen) for known in lists] == ["the certificate of 'board' was revoked"] * 2
    assert not lists[0].why(_as_others_see_it(client))


def test_one_whose_folder_is_gone_is_named_by_its_number(tmp_path: Path):
    scheduler, _, client = make_certs(tmp_path)
    number = _as_others_see_it(client)["serialNumber"]
    seen = _as_others_see_it(client)
    revoke(tmp_path, ["board"])
    shutil.rmtree(client)
    revoke(tmp_path, [number.lower()])
    assert "was revoked" in Revoked(scheduler).why(seen)
    assert len(read_revoked(tmp_path / REVOKED)) == 2, "the first one still is"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("laptop", "laptop: expected a certificate at .*laptop/cert.pem, or its serial number"),
        ("ABC", "or its serial number in hexadecimal digits"),
        ("../board", "expected"),
    ],
)
def test_who_has_no_certificate_has_none_to_lose(name: str, sentence: str, tmp_path: Path):
    make_certs(tmp_path)
    with pytest.raises(InputError, match=sentence):
        revoke(tmp_path, ["board", name])
    assert not (tmp_path / REVOKED).exists()
    with pytest.raises(InputError, match=r"expected the folder of a farm's authority, got one wi"):
        revoke(tmp_path / "board", ["board"])
    (tmp_path / REVOKED).write_text("[]")
    with pytest.raises(InputError, match="expected names by serial numbers"):
        revoke(tmp_path, ["board"])
