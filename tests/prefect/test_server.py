"""Which Prefect API a run reports to, asked in a process of its own: settings are read once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from retune.prefect.server import prefect_api
with prefect_api() as url:
    from prefect.settings import get_current_settings
    print(json.dumps([url, get_current_settings().api.url]))
"""


LEFT = """
import contextlib, json
from retune.prefect import server
server._PrivateServer = lambda *_: contextlib.nullcontext()
with server.prefect_api() as url:
    inside = server.configured_api()
print(json.dumps([inside == url, server.configured_api()]))
"""
LOST = """
import json
from retune.prefect.server import ServerError, known_api
try:
    with known_api():
        from retune.prefect.pruning import plan_server_pruning
        plan_server_pruning("lab", ["1"])
except ServerError as error:
    print(json.dumps(str(error)))
"""


def asked(folder: Path, program: str = PROGRAM, **environment: str) -> Any:
    """What the program prints: by default, the address given and that of Prefect's client."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    home = {"PREFECT_HOME": str(folder / "home"), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | home | {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_server_of_the_environment_is_used(tmp_path: Path):
    url = "http://127.0.0.1:1/api"
    assert asked(tmp_path, PREFECT_API_URL=url) == [url, url]


@pytest.mark.parametrize("place", ["profile", "prefect.toml"])
def test_a_server_of_prefects_own_settings_is_used(tmp_path: Path, place: str):
    url = "http://127.0.0.1:2/api"
    if place == "profile":
        profiles = tmp_path / "profiles.toml"
        profiles.write_text(f'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = "{url}"\n')
        assert asked(tmp_path, PREFECT_PROFILES_PATH=str(profiles)) == [url, url]
    else:
        (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{url}"\n')
        assert asked(tmp_path) == [url, url]


def test_prefect_forgets_a_private_server_that_has_ended(tmp_path: Path):
    assert asked(tmp_path, LEFT) == [True, None]


def test_a_request_that_finds_no_server_says_what_to_do(tmp_path: Path):
    url = "http://127.0.0.1:9/api"
    said = asked(tmp_path, LOST, PREFECT_API_URL=url, PREFECT_CLIENT_MAX_RETRIES="0")
    assert said.startswith(f"the Prefect server {url} does not answer")
    assert "start it, or unset PREFECT_API_URL" in said


FULL = """
import contextlib, json, shutil, types
from retune.prefect import server
server._PrivateServer = lambda *_: contextlib.nullcontext()
shutil.disk_usage = lambda _: types.SimpleNamespace(free=1 << 20)
try:
    with server.prefect_api() as url:
        from retune.prefect.pruning import plan_server_pruning
        plan_server_pruning("lab", ["1"])
except OSError as error:
    print(json.dumps([error.strerror, error.filename]))
"""


def test_a_private_server_that_lacks_space_says_so(tmp_path: Path):
    said = asked(tmp_path, FULL, PREFECT_CLIENT_MAX_RETRIES="0")
    assert said == ["No space left on device", str(tmp_path / "home")]


@pytest.mark.slow
def test_without_one_a_private_server_is_started_and_ends(tmp_path: Path):
    given, known = asked(tmp_path)
    assert given == known
    assert given.startswith("http://127.0.0.1:")
    assert (tmp_path / "home" / "prefect.db").is_file()


KILLED = """
import logging, os, signal, sys, time, urllib.request
from pathlib import Path
from retune.prefect import server

logging.basicConfig()
server.WATCH_S = 0.05
with server.prefect_api() as url:
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    first, = [int(child) for path in children for child in path.read_text().split()]
    os.kill(first, signal.SIGKILL)
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2)
            break
        except OSError:
            time.sleep(0.1)
    print("answers again")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_private_server_that_is_killed_is_started_again(tmp_path: Path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    home = {"PREFECT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=kept | home | {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.stdout == "answers again\n", done.stderr
    assert "it is restarted" in done.stderr
