"""What each command prints with `--json` is of the type that is stated for it, key by key."""

import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from typer.main import get_command

import retune.bundle.verify.farm_examiner as examiners
import retune.device.remote.link as links
import retune.prefect.launch
import retune.search.layout.search as searches
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import Benchmark, Timing
from retune.bundle.versions import Version
from retune.cli.commands import model as model_command
from retune.cli.commands import verify as verify_command
from retune.cli.main import app, run_command
from retune.cli.outputs import OUTPUTS
from retune.core.dtypes import INT64, TensorType
from retune.core.schema import from_plain, plain
from retune.core.target import GENERIC_CPU
from retune.device.remote.link import AboutBoard, Boards, RemoteBoard
from retune.frontend.gguf.folder import import_gguf
from retune.language.decoder import Decoder
from retune.nightly.members import processes_of_this_machine
from retune.nightly.night import read_night, run_night
from retune.pipeline.request import TuneRequest
from retune.pipeline.running import recorded_run
from retune.pipeline.upkeep import stage_retrain
from retune.records.nights import write_nights
from retune.records.schema import failed
from retune.records.store import RecordStore
from retune.report.html import render
from retune.search.layout.problem import LayoutProblem
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.template import KNOBS
from tests.support.bundle_fixtures import make_plan
from tests.support.cli import result
from tests.support.device_networks import Net, Networks, network, write
from tests.support.examiner import VERDICT
from tests.support.fakes import Clock
from tests.support.fakes import result as night_result
from tests.support.gguf_files import TOKENS, tiny_decoder, written
from tests.support.layers import PLAIN
from tests.support.nights import quiet
from tests.support.offline import store_of
from tests.support.quantize import DIGITS
from tests.support.sample import detailed, sample
from tests.support.store import record
from tests.support.versions import publish

Patch = pytest.MonkeyPatch
Prepare = Callable[[Path, Patch], list[str]]


class FakeExaminer:
    """Answers at once."""

    where = "board-a"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def verify(self, *_: object, **__: object) -> object:
        return VERDICT

    def compare(self, *_: object, **__: object) -> Benchmark:
        timing = Timing(
            name="retune",
            times_s=(1.0,),
            calls_per_sample=1,
            median_s=1.0,
            first_quartile_s=1.0,
            third_quartile_s=1.0,
        )
        return Benchmark(rounds=1, timings=(timing,), ratios=())

    def profile(self, *_: object, **__: object) -> tuple[LaunchProfile, ...]:
        step = LaunchProfile(
            label="a", kernel="k", median_s=1.0, share=1.0, flops=1, bytes=1, gflops=1.0,
            gbytes_per_s=1.0, roofline=None,
        )  # fmt: skip
        return (step,)


def bundle(folder: Path, patch: Patch) -> str:
    patch.setattr(examiners, "open_examiner", lambda _: FakeExaminer())
    return str(write_bundle(make_plan(), folder / "bundle"))


def ran(folder: Path, patch: Patch) -> list[str]:
    """On a device that adds 1 and doubles."""
    np.savez(folder / "in.npz", x=np.ones((4, 8), np.float32))
    return ["run", bundle(folder, patch), "--input", str(folder / "in.npz"), "--device", "pocl"]


def versions(folder: Path) -> str:
    publish(folder / "out", "one")
    publish(folder / "out", "two")
    return str(folder / "out")


def records(folder: Path) -> list[str]:
    store_of(folder)
    return ["--records", str(folder)]


def two_nights(folder: Path) -> list[str]:
    store = RecordStore(folder)
    wrong = failed("timeout", "it hung")
    for night in ("one", "two"):
        rows = [record(n, night=night, knobs=(("tile", (n % 2,)),)) for n in range(4)]
        store.append([*rows, record(9, night=night, measurement=wrong)])
    return ["--records", str(folder)]


def vta(folder: Path) -> str:
    values = dict.fromkeys(KNOBS, (1,)) | {"tile_h": (3,), "tile_w": (6,), "tile_co": (4,)}
    return str(lower(PLAIN, values, VtaConfig()).save(folder / "layer.npz"))


def trained(folder: Path, patch: Patch) -> list[str]:
    patch.setattr(retune.prefect.launch, "run_flow", lambda call: call())
    patch.setattr(model_command, "_retrain", stage_retrain)
    return records(folder)


def with_model(folder: Path, patch: Patch) -> list[str]:
    assert run_command(["model", "train", *trained(folder, patch)]) == 0
    store_of(folder, day=3)
    return ["--records", str(folder)]


def a_run(folder: Path, patch: Patch) -> list[str]:
    request = TuneRequest(
        model="zoo:fake", out=str(folder / "o"), records="r", work=str(folder / "cache")
    )
    with pytest.raises(KeyError), recorded_run(request):
        raise KeyError
    return ["resume"]


def a_farm(folder: Path, patch: Patch) -> list[str]:
    about = AboutBoard(wire=3, retune="1", distributed="1", spec=GENERIC_CPU)
    board = RemoteBoard(name="a", address="tcp://a:1", resource="k/1", jobs=0, about=about)
    link = types.SimpleNamespace(
        address="tcp://s:1", boards=lambda: Boards(found=(board,), waiting={}), close=lambda: None
    )
    patch.setattr(links, "Link", lambda _: link)
    return ["devices", "--scheduler", "tcp://localhost:1"]


def built(folder: Path, patch: Patch) -> list[str]:
    version = Version(model_key="m", target="t", program="p", verdict="as asked for", complete=True)
    patch.setattr("retune.pipeline.lock.read_lock", lambda _: None)
    patch.setattr("retune.pipeline.lock.build_locked", lambda *_: version)
    return ["build", "zoo:mlp", "--locked", "retune.lock", "--out", str(folder)]


def tuned(folder: Path, patch: Patch) -> list[str]:
    module = types.ModuleType("retune.pipeline.chain")
    module.run_chain = lambda *_: result(folder)  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "retune.pipeline.chain", module)
    return ["tune", "zoo:fake", "--out", str(folder / "out"), "--no-prefect"]


def verified(folder: Path, patch: Patch, floats: object) -> list[str]:
    patch.setattr(verify_command, "_comparison", lambda *_: None)
    patch.setattr(verify_command, "_judged", lambda *_: (VERDICT, floats))
    return ["verify", bundle(folder, patch), "--model", "zoo:mlp"]


NETWORKS: Networks = {}


@partial(network, among=NETWORKS)
def wide(n: Net) -> tuple[str, ...]:
    """Two convolutions with an image between them that may lie in blocks of channels."""
    x = n("Relu", n.conv(n.input(1, 3, 4, 4), 3, 16))
    return (n("Flatten", n("GlobalAveragePool", n.conv(x, 16, 32))),)


def laid_out(folder: Path, patch: Patch) -> list[str]:
    """Times are made up: all kernels take as long."""
    patch.setattr(
        searches, "problem_of", lambda choices, _: LayoutProblem.of(choices, lambda key: 4.0, 1.0)
    )
    return ["plan", str(write("wide", folder, NETWORKS)), *records(folder)]


FLEET = """
out = "fleet"
records = "records"
work = "work"
[[model]]
model = "zoo:mlp"
[[device]]
name = "board"
device = "sim:board.toml"
"""


def a_fleet(folder: Path) -> list[str]:
    """Two nights of one network: made and told, and judged."""
    (folder / "board.toml").write_text('name = "board"\nbase = "pocl"\n')
    (folder / "fleet.toml").write_text(FLEET)
    key = ("mlp", "board")
    for name, time_us in (("one", 100.0), ("two", 110.0)):
        with run_night(folder / "work", name, processes_of_this_machine(), Clock()) as night:
            night.plan({key: 1.0})
            night.begin(key, 1.0)
            night.finish(key, night_result(100.0, 90.0))
            night.end()
        row = replace(quiet(1, 1)[0], fleet="fleet", night=name, network="mlp", device="board")
        write_nights(folder / "records", [replace(row, time_us=time_us)])
    return ["--config", str(folder / "fleet.toml")]


def a_night(folder: Path, patch: Patch) -> list[str]:
    config = a_fleet(folder)
    state = read_night(folder / "work", "two")
    patch.setattr(retune.prefect.launch, "run_flow", lambda _: state)
    return ["nightly", "run", *config]


class Steps:
    """A decoder's calls; every token is as likely as any other."""

    capacity, length = 20, 0

    def reset(self) -> None:
        pass

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.length += inputs["input_ids"].shape[1]
        return {"logits": np.zeros((1, 1, len(TOKENS)), np.float32)}


def decoded(folder: Path, patch: Patch) -> list[str]:
    import_gguf(written(folder, tiny_decoder()), folder / "model")
    one = {"input_ids": TensorType((1, 1), INT64)}
    patch.setattr("retune.language.loading.decoder_of", lambda *_: Decoder(Steps(), one, "tiny"))
    module, tokenizer = bundle(folder, patch), str(folder / "model")
    return ["generate", module, "--prompt", "in the", "--tokenizer", tokenizer, "--tokens", "3"]


def imported(folder: Path, patch: Patch) -> list[str]:
    return ["import-gguf", str(written(folder, tiny_decoder())), "--out", str(folder / "model")]


def reported(folder: Path, patch: Patch) -> list[str]:
    (folder / "a.html").write_text(render(detailed(sample())), encoding="utf-8")
    page = str(folder / "a.html")
    return ["report", page, "--compare", page, "--out", str(folder / "both.html")]


def distilled(folder: Path, patch: Patch) -> list[str]:
    return ["records", "distill", str(folder / "best.jsonl"), *two_nights(folder)]


def merged(folder: Path, patch: Patch) -> list[str]:
    assert run_command(distilled(folder, patch)) == 0
    return ["records", "import", str(folder / "best.jsonl"), "--records", str(folder / "other")]


CASES: dict[str, Prepare] = {
    "bench": lambda folder, patch: ["bench", bundle(folder, patch), "--profile"],
    "build": built,
    "devices": lambda folder, patch: ["devices"],
    "devices --profiles": lambda folder, patch: ["devices", "--profiles"],
    "devices --scheduler": a_farm,
    "export": lambda folder, patch: ["export", bundle(folder, patch), "--c", str(folder / "c")],
    "generate": decoded,
    "import-gguf": imported,
    "init": lambda folder, patch: ["init", "zoo:mlp", "--config", str(folder / "nightly.toml")],
    "model evaluate": lambda f, patch: ["model", "evaluate", "0001", *with_model(f, patch)],
    "model list": lambda folder, patch: ["model", "list", *with_model(folder, patch)],
    "model rollback": lambda folder, patch: ["model", "rollback", *with_model(folder, patch)],
    "model train": lambda folder, patch: ["model", "train", *trained(folder, patch)],
    "nightly compare": lambda f, patch: ["nightly", "compare", "one", "two", *a_fleet(f)],
    "nightly plan": lambda folder, patch: ["nightly", "plan", *a_fleet(folder)],
    "nightly prune": lambda f, patch: ["nightly", "prune", *a_fleet(f), "--keep", "1"],
    "nightly run": a_night,
    "nightly status": lambda folder, patch: ["nightly", "status", *a_fleet(folder)],
    "ops": lambda folder, patch: ["ops"],
    "pack": lambda folder, patch: ["pack", bundle(folder, patch), str(folder / "net.zip")],
    "plan": laid_out,
    "prune": lambda folder, patch: ["prune", "--days", "0", "--cache", str(folder)],
    "quantize": lambda folder, patch: [
        *("quantize", str(DIGITS / "digits.onnx"), "--shape", "image=1,1,8,8"),
        "--calibration",
        "random",
    ],
    "records best": lambda folder, patch: ["records", "best", *records(folder)],
    "records compare": lambda f, patch: ["records", "compare", "one", "two", *two_nights(f)],
    "records curve": lambda folder, patch: ["records", "curve", *two_nights(folder)],
    "records distill": distilled,
    "records export": lambda f, patch: ["records", "export", str(f / "all.csv"), *records(f)],
    "records failures": lambda folder, patch: ["records", "failures", *two_nights(folder)],
    "records import": merged,
    "records importance": lambda folder, patch: ["records", "importance", *two_nights(folder)],
    "records tuners": lambda folder, patch: ["records", "tuners", *two_nights(folder)],
    "records summary": lambda folder, patch: ["records", "summary", *records(folder)],
    "report": reported,
    "resume": a_run,
    "rollback": lambda folder, patch: ["rollback", versions(folder)],
    "run": ran,
    "tasks": lambda folder, patch: ["tasks", "zoo:mlp"],
    "tune": tuned,
    "verify": lambda folder, patch: verified(folder, patch, None),
    "verify of integers": lambda folder, patch: verified(folder, patch, VERDICT),
    "versions": lambda folder, patch: ["versions", versions(folder)],
    "vta roofline": lambda folder, patch: ["vta", "roofline", vta(folder)],
    "vta simulate": lambda folder, patch: ["vta", "simulate", vta(folder)],
}


def _with_json(command: Any, name: str = "") -> Iterator[str]:
    """The names of the commands that print JSON."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from _with_json(inner, f"{name} {part}".strip())
    if any("--json" in parameter.opts for parameter in command.params):
        yield name


def test_every_command_that_prints_json_states_its_type():
    assert {*_with_json(get_command(app))} <= {*OUTPUTS}


@pytest.mark.device
@pytest.mark.filterwarnings("ignore:bundle demo was tuned for")
@pytest.mark.parametrize("command", OUTPUTS)
def test_output_is_of_the_stated_type(
    command: str, tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RETUNE_RECORDS", str(tmp_path / "records"))
    arguments = CASES[command](tmp_path, monkeypatch)
    capfd.readouterr()
    code = run_command([*arguments, "--json"])
    printed = capfd.readouterr()
    assert code in (0, None) or "verify" in command, printed.err
    data = json.loads(printed.out)
    assert data or command == "model rollback"
    assert plain(from_plain(OUTPUTS[command], data, where=command)) == data
