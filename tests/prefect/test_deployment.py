"""A lab's Prefect: a server, the deployments of prefect.yaml, a worker; seen through its API."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from retune.frontend.models import resolve_model
from retune.records.store import RecordStore
from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.device]

BOARD = """
name = "board"
base = "pocl"
measure_s = {measure_s}
"""


class Lab:
    """A server with the deployments, asked as a user's program would ask it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def deployment(self, name: str) -> UUID:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return client.read_deployment_by_name(name).id

    def start(self, name: str, parameters: dict[str, Any], *, delay_s: float = 0.0) -> UUID:
        """A run of the deployment, scheduled for that many seconds from now."""
        from prefect.client.orchestration import get_client
        from prefect.states import Scheduled

        moment = datetime.now(UTC) + timedelta(seconds=delay_s)
        with get_client(sync_client=True) as client:
            made = client.create_flow_run_from_deployment(
                self.deployment(name), parameters=parameters, state=Scheduled(scheduled_time=moment)
            )
        return made.id

    def set_state(self, run: UUID, state: Any) -> None:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run, state, force=True)

    def read(self, run: UUID) -> Any:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            return client.read_flow_run(run)

    def wait(self, run: UUID, name: str) -> Any:
        """The run, once its state is of that name."""

        def is_so() -> bool:
            return self.read(run).state_name == name

        assert wait_until(is_so, DEADLINE_S), f"{self.read(run).state}, expected {name}"
        return self.read(run)

    def schedule(self, name: str, parameters: dict[str, Any], every_s: float) -> UUID:
        """Has the deployment run again and again, from now on. Gives the schedule's id."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import DeploymentScheduleCreate
        from prefect.client.schemas.schedules import IntervalSchedule

        every = IntervalSchedule(
            interval=timedelta(seconds=every_s), anchor_date=datetime.now(UTC), timezone="UTC"
        )
        made = DeploymentScheduleCreate(
            schedule=every, active=True, parameters=parameters, slug="often"
        )
        with get_client(sync_client=True) as client:
            (created,) = client.create_deployment_schedules(self.deployment(name), [made])
        return created.id

    def unschedule(self, name: str, schedule: UUID) -> None:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            client.delete_deployment_schedule(self.deployment(name), schedule)

    def runs(self, name: str) -> list[Any]:
        """The deployment's runs that its schedules made."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

        wanted = DeploymentFilter(id=DeploymentFilterId(any_=[self.deployment(name)]))
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(deployment_filter=wanted, limit=200)
        return [run for run in found if run.auto_scheduled]

    def task_runs(self, run: UUID) -> dict[str, list[str]]:
        """Name -> states of the run's tasks, of all of its tries."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        with get_client(sync_client=True) as client:
            found = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])), limit=200
            )
        states: dict[str, list[str]] = {}
        for entry in found:
            states.setdefault(entry.name, []).append(entry.state_name or "")
        return states


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`prefect server start`, a work pool, `prefect deploy --all`, `prefect worker start`."""
    home = tmp_path_factory.mktemp("lab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "RETUNE_"))}
    environment |= {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}",
        "RETUNE_RECORDS": str(home / "records"),
        "RETUNE_CACHE": str(home / "cache"),
    }
    prefect = [sys.executable, "-m", "prefect"]
    with ExitStack() as started, pytest.MonkeyPatch.context() as patch:
        server = [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        started.enter_context(process(server, environment, home / "server.log"))
        assert wait_until(lambda: answers(f"{url}/health"), DEADLINE_S)
        for command in (
            ["work-pool", "create", "retune", "--type", "process"],
            ["--no-prompt", "deploy", "--all"],
        ):
            subprocess.run([*prefect, *command], env=environment, cwd=ROOT, check=True)
        worker = [*prefect, "worker", "start", "--pool", "retune", "--type", "process"]
        here = environment | {"RETUNE_HOME": str(ROOT)}  # where flows are: known to the worker only
        started.enter_context(process(worker, here, home / "worker.log"))
        for name in ("PREFECT_API_URL", "PREFECT_HOME", "NO_PROXY"):
            patch.setenv(name, environment[name])
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield Lab(url)
    refresh_global_settings_context()


@contextmanager
def process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """A process that lasts as long as the context."""
    with log.open("wb") as stream:
        running = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=stream, stderr=stream, process_group=0
        )
        try:
            yield
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            try:
                running.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def write_network(path: Path) -> None:
    """A small network, as a file."""
    shutil.copy(resolve_model("zoo:mlp", path.parent / "models", {}), path)


@pytest.fixture
def parameters(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Parameters of the tuning flow for a small network on a simulated board."""

    def made(*, measure_s: float = 0.0, trials: int = 16, model: str = "") -> dict[str, Any]:
        board = tmp_path / "board.toml"
        board.write_text(BOARD.format(measure_s=measure_s))
        network = tmp_path / "network.onnx"
        if not model:
            write_network(network)
        return {
            "model": model or str(network),
            "out": str(tmp_path / "out"),
            "device": f"sim:{board}",
            "trials": trials,
            "records": str(tmp_path / "records"),
            "work": str(tmp_path / "work"),
        }

    return made


def test_the_deployments_are_those_of_the_file(lab: Lab):
    names = ("tune-network/cpu", "tune-network/gpu", "tune-network/board")
    for name in (*names, "retrain-cost-model/retrain"):
        assert lab.deployment(name)


def test_a_scheduled_run_is_done_by_the_worker(
    lab: Lab, parameters: Callable[..., dict[str, Any]], tmp_path: Path
):
    run = lab.start("tune-network/board", parameters(), delay_s=2)
    found = lab.wait(run, "Completed")
    assert {"retune", "model:network"} <= set(found.tags)
    assert (tmp_path / "out" / "module" / "module.json").is_file()
    names = lab.task_runs(run)
    assert {"import", "extract", "finalists", "compile tuned", "verify", "report"} <= names.keys()
    assert any(name.startswith("tune ") for name in names)


def test_a_schedule_makes_the_runs(
    lab: Lab, parameters: Callable[..., dict[str, Any]], tmp_path: Path
):
    schedule = lab.schedule("tune-network/board", parameters(), every_s=15)

    def done() -> bool:
        return any(run.state_name == "Completed" for run in lab.runs("tune-network/board"))

    try:
        assert wait_until(done, DEADLINE_S), lab.runs("tune-network/board")
    finally:
        lab.unschedule("tune-network/board", schedule)
    assert (tmp_path / "out" / "module" / "module.json").is_file()


def test_a_failed_run_is_retried_and_goes_on(
    lab: Lab, parameters: Callable[..., dict[str, Any]], tmp_path: Path
):
    from prefect.states import AwaitingRetry

    given = parameters()
    missing = tmp_path / "later.onnx"
    run = lab.start("tune-network/board", given | {"model": str(missing)})
    assert "later.onnx" in lab.wait(run, "Failed").state.message
    write_network(missing)
    lab.set_state(run, AwaitingRetry(scheduled_time=datetime.now(UTC)))
    assert lab.wait(run, "Completed").run_count == 2


def test_a_cancelled_run_keeps_what_it_measured(
    lab: Lab, parameters: Callable[..., dict[str, Any]], tmp_path: Path
):
    from prefect.states import Cancelling

    given = parameters(measure_s=0.5, trials=2000)
    run = lab.start("tune-network/board", given)
    store = RecordStore(tmp_path / "records")

    def some() -> bool:
        return store.root.is_dir() and len(store.scan(columns=["record_id"])) > 0

    assert wait_until(some, DEADLINE_S), lab.read(run).state
    before = set(store.scan(columns=["record_id"])["record_id"])
    lab.set_state(run, Cancelling())
    lab.wait(run, "Cancelled")
    assert before <= set(store.scan(columns=["record_id"])["record_id"])

    again = lab.start("tune-network/board", given | {"trials": 16})
    lab.wait(again, "Completed")
