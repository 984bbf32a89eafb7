"""What tests of cli share with others."""

from pathlib import Path

from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.pipeline.summary import summarize
from tests.flows.fakes import FakeStages


def result(folder: Path) -> TuneResult:
    """What a run over the fake stages ends with."""
    request = TuneRequest(
        model="zoo:fake", out=str(folder / "out"), records="records", work=str(folder / "work")
    )
    stages = FakeStages()
    run = stages.finished(request)
    return summarize(request, run, stages.stage_report(request, run))
