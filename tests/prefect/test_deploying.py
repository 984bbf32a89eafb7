"""Deployments: prefect.yaml has neither schedule nor path; a fleet's follow from its file."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from retune.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {"cpu", "gpu", "board"}


@pytest.fixture
def written() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "prefect.yaml").read_text())


def test_the_file_pulls_from_where_the_worker_says(written: dict[str, Any]):
    (step,) = written["pull"]
    assert step["prefect.deployments.steps.set_working_directory"] == {
        "directory": "{{ $RETUNE_HOME }}"
    }


def test_the_file_has_a_queue_for_each_class_of_device_and_no_schedule(written: dict[str, Any]):
    found = written["deployments"]
    assert {each["work_pool"]["work_queue_name"] for each in found} >= CLASSES
    assert not any(each.get("schedules") for each in found)
    assert not any(each["entrypoint"].startswith("flows/nightly") for each in found)


def test_settings_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch):
    from prefect.settings import Settings

    for name in ("PREFECT_LOGGING_EXTRA_LOGGERS", "PREFECT_SERVER_ANALYTICS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    settings = Settings()
    assert settings.logging.extra_loggers == ["retune"]
    assert settings.results.default_serializer == "json"
    assert not settings.server.analytics_enabled
    assert "flow_runs" in settings.server.services.db_vacuum.enabled_vacuum_types


def deployed(name: str) -> Any:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(name)


@pytest.mark.process
@pytest.mark.usefixtures("server")
def test_a_fleet_is_deployed_as_its_file_says_again_and_again():
    from flows.nightly import nightly
    from retune.prefect.deploying import WorkerPlacement, deploy_fleet

    workers = WorkerPlacement(queue="board")
    for cron in ("0 22 * * *", "30 21 * * *"):
        name = deploy_fleet(
            nightly,
            name="lab",
            config="/lab/lab.toml",
            cron=cron,
            timezone="Europe/Berlin",
            workers=workers,
        )
        assert name == "nightly/lab"
        found = deployed(name)
        (schedule,) = found.schedules
        assert (schedule.schedule.cron, schedule.schedule.timezone) == (cron, "Europe/Berlin")
        assert schedule.active
        assert found.parameters == {"config": "/lab/lab.toml"}
        assert (found.work_pool_name, found.work_queue_name) == ("retune", "board")
        assert found.entrypoint == "flows.nightly.nightly"
        assert not found.pull_steps
        assert found.path is None


@pytest.mark.process
@pytest.mark.usefixtures("server")
def test_a_block_that_does_not_exist_is_said_at_once():
    from flows.nightly import nightly
    from retune.prefect.deploying import WorkerPlacement, deploy_fleet

    with pytest.raises(InputError, match="local-file-system/none"):
        deploy_fleet(
            nightly,
            name="lab",
            config="lab.toml",
            cron="0 22 * * *",
            timezone="UTC",
            workers=WorkerPlacement(results="local-file-system/none"),
        )


@pytest.mark.process
@pytest.mark.usefixtures("server")
def test_results_are_stored_by_the_block_of_that_name(tmp_path: Path):
    from prefect.filesystems import LocalFileSystem

    from flows.nightly import nightly
    from retune.prefect.deploying import STORAGE, WorkerPlacement, deploy_fleet

    LocalFileSystem(basepath=str(tmp_path)).save("retune-results", overwrite=True)
    block = "local-file-system/retune-results"
    name = deploy_fleet(
        nightly,
        name="stored",
        config="lab.toml",
        cron="0 22 * * *",
        timezone="UTC",
        workers=WorkerPlacement(results=block),
    )
    assert deployed(name).job_variables == {"env": {STORAGE: block}}


def test_a_fleet_is_deployed_to_a_server_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from retune.cli.main import run_command

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    file = tmp_path / "lab.toml"
    file.write_text('out = "out"\n[[model]]\nmodel = "zoo:mlp"\n[[device]]\nname = "pocl"\n')
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert run_command(["nightly", "deploy", "--config", str(file)]) == 2
    assert "set PREFECT_API_URL" in capsys.readouterr().err
