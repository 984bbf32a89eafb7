"""What tests of trust share with others."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A private key and its public one."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(to.Encoding.PEM, to.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public
