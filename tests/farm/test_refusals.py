"""What is no batch of kernels, or comes from no member, is refused in one line; boards live on."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from retune.core.errors import InputError
from retune.device.measure.workload import MeasureOptions
from retune.device.remote.wire import WIRE, Envelope, Reply, pack, unpack
from retune.farm.certs import make_certs
from tests.farm.processes import Farm, Process
from tests.support.measure import WORKLOAD, program

pytestmark = [pytest.mark.slow, pytest.mark.device]

INTRUDER = Path(__file__).with_name("intruder.py")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with Farm(tmp_path_factory.mktemp("farm"), most_mb=2.0) as opened:
        opened.start_board("a", "")
        yield opened


def tried(farm: Farm, deed: str, certs: Path | None = None) -> str:
    """What became of it; the file that foreign code would have made is not there."""
    proof = farm.folder / "proof"
    member = certs or farm.certs / "client"
    with closing(farm.link()) as link:
        board = link.boards().found[0].address
    done = subprocess.run(
        [sys.executable, INTRUDER, farm.address, member, deed, proof, board],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not proof.exists()
    assert done.stdout, done.stderr
    return done.stdout


def board_of(farm: Farm) -> Process:
    return farm.processes[1]


def check_alive(farm: Farm) -> None:
    """The same two processes measure as ever, and their logs have no traceback."""
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(WORKLOAD)
        (row,) = runner.submit("task", [program()], MeasureOptions()).result()
    assert row.ok
    assert len(farm.processes) == 2
    for process in farm.processes:
        assert process.alive
        assert not process.matching("Traceback|^  ")
    assert len(board_of(farm).matching("board a serves")) == 1


@pytest.mark.parametrize(
    ("deed", "member", "who", "line"),
    [
        ("function", "client", "scheduler", r"a message.* that names posix.system; only batches"),
        ("closure", "client", "scheduler", r"a message.* that names cloudpickle.*; only batches"),
        ("argument", "client", "scheduler", r"a message.* that names posix.system; only batches"),
        ("oversized", "client", "scheduler", r"a message from tls://.* of more than 2097152 bytes"),
        (
            "scheduler",
            "client",
            "scheduler",
            r"the operation 'run_function' from tls://.*, a client",
        ),
        ("stream", "client", "scheduler", r"a message from tls://.* that names posix.system"),
        ("unknown", "client", "scheduler", r"the operation 'update-data' from tls://.*, a client"),
        ("garbage", "client", "board", r"a job: expected arrays in safetensors"),
        ("text", "client", "board", r"a job: expected a message of bytes, got str"),
        (
            "direct",
            "client",
            "board",
            r"a connection from tls://.* with the certificate of a client",
        ),
        ("run", "scheduler", "board", r"the operation 'run'; a farm has none"),
        ("upload", "scheduler", "board", r"the operation 'upload_file'; a farm has none"),
        ("message", "scheduler", "board", r"a message from tls://.* that names posix.system"),
        (
            "list",
            "scheduler",
            "scheduler",
            r"a connection from .* with the certificate of a scheduler",
        ),
        (
            "function",
            "board",
            "scheduler",
            r"the operation 'register-client' from tls://.*, a board",
        ),
        ("direct", "board", "board", r"a connection from tls://.* with the certificate of a board"),
    ],
)
def test_a_member_who_wants_more_is_refused(
    farm: Farm, deed: str, member: str, who: str, line: str
):
    process = farm.scheduler if who == "scheduler" else board_of(farm)
    before = len(process.lines), len(process.matching("refused"))
    outcome = tried(farm, deed, farm.certs / member)
    assert "touch" not in outcome
    process.wait_for(f"refused:? {line}")
    refused = process.matching("refused")[before[1] :]
    assert len(set(map(said, refused))) == 1, refused
    check_alive(farm)


def said(line: str) -> str:
    """The line without its time, and the port of who is refused: clients try more than once."""
    return re.sub(r"tls://[0-9.:]+", "", line.partition("WARNING")[2])


@pytest.mark.parametrize(
    "deed", ["list", "nameless", "arguments", "half", "graph", "bytes", "counts"]
)
def test_what_is_no_message_of_a_farm_is_one_line(farm: Farm, deed: str):
    """Of whoever has a certificate; the scheduler goes on."""
    scheduler = farm.scheduler
    before, warned = len(scheduler.lines), len(scheduler.matching("WARNING|ERROR"))
    tried(farm, deed)
    scheduler.wait_for("WARNING|ERROR", warned + 1)
    check_alive(farm)
    new = [line for line in scheduler.lines[before:] if "TLS handshake failed" not in line]
    assert len(new) == 1, new  # connections that end early are another matter


def test_nobody_listens_but_to_this_machine_and_with_one_door(farm: Farm):
    """No web page, and nothing off loopback where the scheduler is on it."""
    for process in farm.processes:
        (door,) = [
            c.laddr for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"
        ]
        assert door.ip == "127.0.0.1"


def test_who_has_no_certificate_is_refused(farm: Farm):
    assert tried(farm, "plain").startswith("failed")
    farm.scheduler.wait_for("TLS handshake failed")
    check_alive(farm)


def test_who_has_a_foreign_certificate_is_refused(farm: Farm, tmp_path: Path):
    make_certs(tmp_path / "others")
    before = len(farm.scheduler.matching("TLS handshake failed"))
    assert tried(farm, "foreign", tmp_path / "others" / "client").startswith("failed")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for name in ("cert.pem", "key.pem"):
        (mixed / name).write_bytes((tmp_path / "others" / "client" / name).read_bytes())
    (mixed / "ca.pem").write_bytes((farm.certs / "client" / "ca.pem").read_bytes())
    assert tried(farm, "foreign", mixed).startswith("failed")  # it trusts us, we do not trust it
    farm.scheduler.wait_for("TLS handshake failed", before + 1)
    check_alive(farm)


def test_a_key_that_no_board_has_is_an_error_at_once(farm: Farm):
    with closing(farm.link()) as link, pytest.raises(InputError, match="'nosuch'; boards there"):
        farm.runner(link, key="nosuch")


def test_a_job_for_another_board_is_refused(farm: Farm):
    with closing(farm.link()) as link:
        resource = link.boards().found[0].resource
        job = pack(Envelope(wire=WIRE, kind="measure", board="other/kind"))
        reply, _ = unpack(Reply, link.ask(job, resource))
    assert reply.state == "refused"
    board_of(farm).wait_for("refused a job: expected a job for sim/.*, got one for 'other/kind'")
    check_alive(farm)
