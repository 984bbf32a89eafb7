"""What a job about bundles may ask for, before anything of it is opened."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.examiner import Examiner
from retune.bundle.verify.remote_requests import BundleJob, SentBundle
from retune.core.schema import to_json
from retune.device.remote.wire import MessageParts, RefusedError
from retune.farm.bundles import Bundles

SENT = SentBundle(name="net", digest="0")
JOB = BundleJob(deed="compare", bundles=(SENT,))


def unopened() -> Examiner:
    raise AssertionError("nothing is opened for a job that is refused")


def blob(_: str) -> bytes:
    raise AssertionError("nothing is read for a job that is refused")


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (replace(JOB, bundles=()), "expected 1 to 8 bundles"),
        (replace(JOB, bundles=(SENT, SENT)), "bundles with names of their own"),
        (replace(JOB, repeat=0), "repeat: expected 1 to 1000, got 0"),
        (replace(JOB, options=BenchOptions(budget_s=1e9)), "budget_s: expected 0 to 600"),
        (replace(JOB, options=BenchOptions(warmup=-1)), "warmup: expected 0 to 1000, got -1"),
        (replace(JOB, options=BenchOptions(seed=-1)), "seed: expected 0 to"),
        (replace(JOB, options=BenchOptions(precision=-1.0)), "precision: expected 0 to 1"),
    ],
)
def test_what_asks_for_more_than_a_board_gives_is_refused(
    job: BundleJob, sentence: str, tmp_path: Path
):
    with pytest.raises(RefusedError, match=sentence):
        Bundles(tmp_path, unopened).carry_out(to_json(job), MessageParts(), blob)
