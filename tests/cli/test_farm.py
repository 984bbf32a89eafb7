"""`retune farm` and what leads to it: certificates, refusals, and one sentence for each mistake."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from retune.cli.main import run_command


@pytest.fixture(autouse=True)
def no_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETUNE_CERTS", "RETUNE_SCHEDULER"):
        monkeypatch.setenv(name, "")
    # it is for a process of its own: here it would change what all later tests log
    monkeypatch.setattr("retune.farm.logs.log_lines", lambda: None)


def test_certificates_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["farm", "certs", str(tmp_path / "farm")]) == 0
    made = capsys.readouterr().out
    for role in ("scheduler", "board", "client"):
        names = {path.name for path in (tmp_path / "farm" / role).iterdir()}
        assert names == {"ca.pem", "cert.pem", "key.pem"}
        assert str(tmp_path / "farm" / role) in made
    assert run_command(["farm", "certs", str(tmp_path / "farm")]) == 0
    assert "all of them are there" in capsys.readouterr().out
    assert run_command(["farm", "certs", str(tmp_path / "farm"), "--name", "a/b"]) == 2
    assert run_command(["farm", "certs", str(tmp_path / "farm"), "--name", "rk3399"]) == 2
    assert "expected --role with it" in capsys.readouterr().err
    named = ["--name", "rk3399", "--role", "board"]
    assert run_command(["farm", "certs", str(tmp_path / "farm"), *named]) == 0
    assert (tmp_path / "farm" / "rk3399" / "key.pem").is_file()


def test_certificates_are_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = str(tmp_path / "farm")
    assert run_command(["farm", "certs", folder]) == 0
    assert run_command(["farm", "revoke", folder, "board"]) == 0
    assert f"{tmp_path / 'farm' / 'scheduler' / 'revoked.json'}: board" in capsys.readouterr().out
    assert run_command(["farm", "revoke", folder, "nobody"]) == 2
    assert "nobody: expected a certificate at" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "retune.cli.main",
                "farm",
                "scheduler",
                "--plain",
                "--port",
                port,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"tcp://127.0.0.1:{port}: expected an address to listen on" in line
    assert "ddress already in use" in line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["farm", "scheduler", "--host", "0.0.0.0", "--plain"], "expected TLS off this machine"),
        (["farm", "scheduler", "--host", "0.0.0.0"], "expected a folder with the farm's cert"),
        (["farm", "scheduler", "--certs", "nowhere"], "expected ca.pem, cert.pem and key.pem"),
        (["farm", "serve", "--key", "a"], "expected the address of a farm's scheduler, got none"),
        (
            ["farm", "serve", "--key", "a", "--scheduler", "tcp://10.0.0.1"],
            "expected tls:// off this machine, got tcp://",
        ),
        (
            ["farm", "serve", "--key", "a", "--scheduler", "tls://10.0.0.1"],
            "expected a folder with the farm's certificates",
        ),
        (["devices", "--scheduler", "http://a"], "expected tls://HOST:PORT"),
        (
            ["tune", "zoo:mlp", "--out", "x", "--device", "farm:a"],
            "expected the address of the farm's scheduler, got none",
        ),
        (
            ["tune", "zoo:mlp", "--out", "x", "--scheduler", "tls://a:1"],
            "expected a device farm:KEY with it, got 'pocl'",
        ),
        (
            ["tune", "zoo:mlp", "--out", "x", "--device", "farm:a b", "--scheduler", "tls://a:1"],
            "key 'a b': expected letters",
        ),
    ],
)
def test_a_farm_without_what_it_needs_refuses_to_start(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
):
    assert run_command(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert sentence in said[0]
