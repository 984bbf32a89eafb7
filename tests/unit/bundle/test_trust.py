"""A bundle that has to be somebody's is that, or nothing of it is run."""

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.trust import pair

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from retune.bundle.format import pack_zip, read_bundle
from retune.bundle.trust import Trust, admitted, digest_of, signature_of
from retune.core.errors import InputError


def refused(bundle: Path, trust: Trust) -> str:
    """Why it is not admitted."""
    with pytest.raises(InputError) as caught, admitted(bundle, trust):
        pass
    return str(caught.value)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return pair(tmp_path, "ours")


@pytest.fixture
def signed(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> Path:
    return pack_zip(folder, tmp_path / "net.zip", signature_of(folder, keys[0]))


def test_nothing_asked_is_the_bundle_itself(folder: Path):
    with admitted(folder, Trust()) as bundle:
        assert bundle == folder


def test_a_digest_is_that_of_the_manifest(folder: Path, tmp_path: Path):
    digest = sha256((folder / "module.json").read_bytes()).hexdigest()
    assert digest_of(folder) == digest_of(pack_zip(folder, tmp_path / "net.zip")) == digest
    with admitted(folder, Trust(digest=digest)) as bundle:
        assert read_bundle(bundle).name == "demo"
    assert "expected the bundle with digest 000" in refused(folder, Trust(digest="0" * 64))
    assert "expected 64 hexadecimal digits" in refused(folder, Trust(digest="12"))


def test_what_was_checked_is_what_is_run(folder: Path):
    """Whoever can write to the bundle comes too late, and other files are none of it."""
    (folder / "other").write_text("other")
    with admitted(folder, Trust(digest=digest_of(folder))) as bundle:
        (folder / "kernels.cl").write_text("worse")
        assert "worse" not in read_bundle(bundle).text
        assert not (bundle / "other").exists()
        assert bundle.parent.stat().st_mode & 0o777 == 0o700
        kept = bundle
    assert not kept.exists()


def test_the_owners_bundle_is_admitted(
    signed: Path, keys: tuple[Path, Path], folder: Path, tmp_path: Path
):
    other = pair(tmp_path, "theirs")[1]
    for owners in ((keys[1],), (other, keys[1])):
        with admitted(signed, Trust(keys=owners)) as bundle:
            assert read_bundle(bundle).name == "demo"
    assert "got one by somebody else" in refused(signed, Trust(keys=(other,)))
    assert f"by the owner of {keys[1]}, got none" in refused(folder, Trust(keys=(keys[1],)))


def test_a_signature_is_for_one_bundle(signed: Path, keys: tuple[Path, Path], tmp_path: Path):
    shutil.unpack_archive(signed, tmp_path / "bent", "zip")
    with admitted(tmp_path / "bent", Trust(keys=(keys[1],))):
        pass
    manifest = tmp_path / "bent" / "module.json"
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert "or of another bundle" in refused(tmp_path / "bent", Trust(keys=(keys[1],)))


def test_a_signed_folder_stays_signed(signed: Path, keys: tuple[Path, Path], tmp_path: Path):
    shutil.unpack_archive(signed, tmp_path / "folder", "zip")
    again = pack_zip(tmp_path / "folder", tmp_path / "again.zip")
    assert again.read_bytes() == signed.read_bytes()


@pytest.mark.parametrize("kind", ["nothing", "text", "another kind", "a public one"])
def test_a_key_that_is_none_is_said(
    kind: str, folder: Path, keys: tuple[Path, Path], tmp_path: Path
):
    path = tmp_path / "key.pem"
    if kind == "text":
        path.write_text("secret")
    elif kind == "another kind":
        other = generate_private_key(SECP256R1())
        path.write_bytes(
            other.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
        )
    elif kind == "a public one":
        path = keys[1]
    with pytest.raises(InputError, match="expected a private Ed25519 key as a PEM file"):
        signature_of(folder, path)
    owner = keys[0] if kind == "a public one" else path
    assert "expected a public Ed25519 key as a PEM file" in refused(folder, Trust(keys=(owner,)))


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl's program is not installed")
def test_keys_of_openssl_are_taken(folder: Path, tmp_path: Path):
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    for command in (
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private],
        ["openssl", "pkey", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True)
    path = pack_zip(folder, tmp_path / "net.zip", signature_of(folder, private))
    with admitted(path, Trust(keys=(public,))):
        pass
