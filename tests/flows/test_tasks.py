"""The flow over stand-in stages without Prefect's engine: what it refuses, and what fails alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import InputError, RetuneError
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from tests.flows.fakes import TASKS, FakeStages, runs


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model="zoo:fake",
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "work"),
    )


def test_a_flow_sees_a_bad_place_before_anything_is_done(request_: TuneRequest, tmp_path: Path):
    (tmp_path / "out").write_text("a file where a folder is to be")
    with pytest.raises(InputError, match="out"):
        run_chain(request_, InProcess())
    assert not (tmp_path / "work").exists()


def test_a_search_that_fails_ends_no_other_and_is_told(
    request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    FakeStages(broken=TASKS[1].key).install(monkeypatch)
    result = run_chain(request_, InProcess())
    assert [key for key, _ in result.failed] == [TASKS[1].name]
    assert result.failed[0][1] == f"{TASKS[1].key}: expected a kernel, got nonsense"
    assert f"search-{TASKS[1].key}" not in runs(Path(request_.work))
    assert Path(result.module).is_dir()


def test_a_wrong_bundle_is_published_by_nobody(
    request_: TuneRequest, monkeypatch: pytest.MonkeyPatch
):
    stages = FakeStages()
    stages.verified = False
    stages.install(monkeypatch)
    with pytest.raises(RetuneError, match="nothing was published"):
        run_chain(request_, InProcess())
    assert not Path(request_.out).exists()


def test_parameters_of_the_flow_are_the_request():
    from flows.tune_network import parameters_of, tune_network

    request = TuneRequest(
        model="zoo:fake", out="out", records="records", work="work", shapes=(("x", (1, 2)),)
    )
    given = parameters_of(request)
    assert given["shapes"] == {"x": [1, 2]}
    assert tune_network.validate_parameters(given).keys() == given.keys()
    wrong = parameters_of(replace(request, tuner="best"))
    with pytest.raises(Exception, match="tuner"):
        tune_network.validate_parameters(wrong)
