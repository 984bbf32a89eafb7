"""Requests whose records are there: their tasks were searched with times that are pretended."""

from datetime import date
from pathlib import Path

from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from tests.support.device_networks import write
from tests.support.search_fakes import FakeRunner, Outcome


def searched_request(network: str, folder: Path, outcome: Outcome, *, trials: int) -> TuneRequest:
    """The network's request in that folder, after so many trials."""
    folders = {name: str(folder / name) for name in ("out", "records", "work")}
    request = TuneRequest(model=str(write(network, folder)), **folders, trials=trials)
    tasks = [t for t in open_network(request).network.tasks.values() if t.tunable]
    settings = RunSettings(run_id="run", model="m", layout="NHWC", trials=trials, tuner="random")
    store = RecordStore(request.records)
    search_all(Session(tasks, FakeRunner(outcome), store, settings))
    store.compact(date.max)  # each look at them opens one file
    return request
