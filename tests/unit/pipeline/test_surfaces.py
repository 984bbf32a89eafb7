"""A request is declared once: five surfaces have its fields, defaults, choices and help texts."""

import inspect
import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

from retune import api
from retune.cli.main import app
from retune.core.errors import InputError
from retune.core.layouts import LAYOUTS
from retune.core.processes import this_process
from retune.nightly.config import (
    DECIDED,
    MEASURING_KEYS,
    OPTION_KEYS,
    OWN_KEYS,
    DeviceConfig,
    ModelConfig,
    NightlyConfig,
    load_config,
)
from retune.pipeline.request import EARLIER, TuneRequest, options
from retune.pipeline.running import RunRecord, run_name, runs
from retune.search.task_schedulers import TASK_SCHEDULERS
from retune.search.tuners import TUNERS

OPTIONS = options()
DEFAULTS = {name: each.default for name, each in OPTIONS.items()}
REQUIRED = {"model", "out"}


def test_a_request_has_the_defaults_of_its_options():
    assert OPTIONS.keys() == {each.name for each in fields(TuneRequest)}
    assert {name for name, default in DEFAULTS.items() if default is ...} == REQUIRED


def test_the_python_function_has_them():
    parameters = inspect.signature(api.tune_network).parameters
    own = {"progress", "stop"}
    given = {n: each.default for n, each in parameters.items() if n not in own}
    assert given == DEFAULTS | dict.fromkeys(REQUIRED, inspect.Parameter.empty)
    assert all(f"{name}: {each.help}" in (api.tune_network.__doc__ or "")
               for name, each in OPTIONS.items())  # fmt: skip


def test_the_command_has_them():
    commands: Any = typer.main.get_command(app)
    known = {each.name: each for each in commands.commands["tune"].params}
    assert OPTIONS.keys() <= known.keys()
    for name, each in OPTIONS.items():
        assert known[name].required is (name in REQUIRED)
        assert name in REQUIRED or known[name].default == each.default, name
        assert known[name].help.startswith(each.help), name
    beside = {"device_param", "scheduler", "certs", "no_prefect", "json"}
    beside |= {"quiet", "verbose"}
    scheme = {"ranges", "weights", "weight_bits", "activations", "global_scale", "skip"}
    others = known.keys() - OPTIONS.keys() - {"help", "bias_correction", *EARLIER}
    assert others == beside | scheme


def test_the_flow_has_them_as_its_form():
    from flows.tune_network import parameters_of, tune_network

    shown = tune_network.parameters.properties
    assert set(tune_network.parameters.required) == REQUIRED
    assert {name: each.get("default", ...) for name, each in shown.items()} == DEFAULTS
    for name, each in OPTIONS.items():
        assert shown[name]["description"] == each.help
        forms = [shown[name], *shown[name].get("anyOf", ())]
        assert tuple(name for form in forms for name in form.get("enum", ())) == each.choices
        assert "type" in shown[name] or "anyOf" in shown[name]
    assert shown["keep"]["minimum"] == 0
    assert {each["type"] for each in shown["samples"]["anyOf"]} == {"integer", "string"}
    given = TuneRequest(model="m", out="o", shapes={"x": (1, 2), "n": 3}, quantize="power2")
    again = tune_network.validate_parameters(json.loads(json.dumps(parameters_of(given))))
    assert TuneRequest(**again) == given


def test_a_nightly_file_has_them_as_keys(tmp_path: Path):
    """But for what a night decides itself; its minutes are shares of the night's."""
    tables = (NightlyConfig, ModelConfig, DeviceConfig)
    keys = [{each.name for each in fields(table)} for table in tables]
    assert set().union(*keys) >= OPTIONS.keys() - set(DECIDED)
    assert not set(DECIDED) & set().union(*keys)
    assert set(MEASURING_KEYS) <= keys[-1] & set(OPTION_KEYS)
    assert set(OPTION_KEYS) | set(OWN_KEYS) | set(DECIDED) == OPTIONS.keys()
    path = tmp_path / "fleet.toml"
    path.write_text('out = "o"\n[[model]]\nmodel = "zoo:mlp"\n[[device]]\nname = "pocl"\n')
    config = load_config(path)
    asked = config.request(*config.pairs[0], minutes=3.0, campaign="c")
    own = {
        "out": str(tmp_path / "o/mlp/pocl"),
        "records": config.records,
        "work": config.work,
        "minutes": 3.0,
        "effort": "exhaustive",
        "publish": "faster",
        "campaign": "c",
    }
    assert asked == replace(TuneRequest("zoo:mlp", "o"), **own)
    example = (Path(__file__).parents[3] / "examples/nightly.toml").read_text()
    assert [name for name in OPTION_KEYS if f"{name} = " not in example] == []


def test_names_of_choices_are_those_of_the_registries():
    assert OPTIONS["tuner"].choices == tuple(TUNERS)
    assert OPTIONS["task_scheduler"].choices == tuple(TASK_SCHEDULERS)
    assert OPTIONS["layout"].choices == LAYOUTS
    assert get_args(OPTIONS["publish"].kind) == ("always", "faster")


def test_without_limits_a_run_measures_three_minutes():
    limits = [
        (made.trials, made.minutes)
        for made in (
            TuneRequest("m", "o"),
            TuneRequest("m", "o", trials=5),
            TuneRequest("m", "o", minutes=2),
        )
    ]
    assert limits == [(None, 3.0), (5, None), (None, 2)]


def test_an_earlier_name_is_refused_by_the_new_one():
    earlier: Any = {"allocator": "gradient"}
    with pytest.raises(InputError, match=r"allocator gradient: .* write task_scheduler gradient"):
        api.tune_network("zoo:mlp", "out", **earlier)


def test_a_stored_request_with_an_earlier_name_is_read(tmp_path: Path):
    made = TuneRequest("zoo:mlp", "out", task_scheduler="sequential", work=tmp_path, trials=3)
    here = this_process()
    record = RunRecord(
        name=run_name(made), request=made, folder=str(tmp_path), holder=here,
        started=here.since, changed=here.since, state="finished",
    )  # fmt: skip
    stored = asdict(record)
    stored["request"]["allocator"] = stored["request"].pop("task_scheduler")
    folder = tmp_path / "runs" / record.name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(stored))
    assert [each.request for each in runs(tmp_path)] == [made]
