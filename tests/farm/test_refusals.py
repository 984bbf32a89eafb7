"""What is no batch of kernels, or comes from no member, is refused in one line; boards live on."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from retune.core.errors import InputError
from retune.device.farm.wire import WIRE, Envelope, Reply, pack, unpack
from retune.device.workload import MeasureOptions
from retune.farm.certs import make_certs
from tests.farm.processes import Farm, Process
from tests.unit.device.test_measure import WORKLOAD, program

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
    done = subprocess.run(
        [sys.executable, INTRUDER, farm.address, member, deed, proof],
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
    ("deed", "who", "line"),
    [
        ("function", "scheduler", r"refused: a message.* that names posix.system; only batches"),
        ("closure", "scheduler", r"refused: a message.* that names cloudpickle.*; only batches"),
        ("argument", "scheduler", r"refused: a message.* that names posix.system; only batches"),
        ("garbage", "board", r"refused a job: expected arrays in safetensors"),
        ("text", "board", r"refused a job: expected a message of bytes, got str"),
        ("oversized", "scheduler", r"refused: a message from tls://.* of more than 2097152 bytes"),
        ("run", "board", r"refused: the operation 'run'; a farm has none"),
        ("upload", "board", r"refused: the operation 'upload_file'; a farm has none"),
        ("scheduler", "scheduler", r"refused: the operation 'run_function'; a farm has none"),
        ("message", "board", r"refused: a message from tls://.* that names posix.system"),
        ("stream", "scheduler", r"refused: a message from tls://.* that names posix.system"),
    ],
)
def test_a_member_who_wants_more_is_refused(farm: Farm, deed: str, who: str, line: str):
    process = farm.scheduler if who == "scheduler" else board_of(farm)
    before = len(process.lines), len(process.matching("refused"))
    outcome = tried(farm, deed)
    assert "touch" not in outcome
    process.wait_for(line)
    assert len(process.matching("refused")) == before[1] + 1
    check_alive(farm)


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
