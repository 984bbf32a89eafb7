"""A configuration is checked whole when it is loaded; a mistake is one sentence that says where."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import time
from pathlib import Path

import numpy as np
import pytest

from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.names import slug
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.nightly.config import (
    OPTION_KEYS,
    NightlyConfig,
    NotifyConfig,
    load_config,
    member_faults,
)
from retune.nightly.window import TimeWindow
from retune.pipeline.request import TuneRequest

DEVICES = ("pocl", "nvidia-cuda-0")
EXAMPLE = Path(__file__).parents[3] / "examples/nightly.toml"

LEAST = """
out = "fleet"
[[model]]
model = "zoo:mlp"
[[device]]
name = "pocl"
"""


def known(name: str) -> None:
    if name not in DEVICES:
        raise InputError(f"device {name!r} is not known; found here: {', '.join(DEVICES)}")


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], NightlyConfig]:
    def write(text: str) -> NightlyConfig:
        path = tmp_path / "nightly.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)

    return write


Load = Callable[[str], NightlyConfig]


def requested(config: NightlyConfig) -> TuneRequest:
    """What a night asks for of the first network."""
    model, device = config.pairs[0]
    return config.request(model, device, minutes=1.0, campaign="night")


def test_the_example_is_right_and_its_defaults_are_the_defaults(load: Load):
    text = EXAMPLE.read_text(encoding="utf-8")
    config = load_config(EXAMPLE)
    assert [model.name for model in config.model] == ["mlp", "squeezenet"]
    least = load(LEAST)
    for name in ("minutes", "schedule", "retrain"):
        assert getattr(config, name) == getattr(least, name), name
    asked, usual = (requested(each) for each in (config, least))
    plain = TuneRequest("m", "o", minutes=1.0)
    for name in OPTION_KEYS:
        assert getattr(asked, name) == getattr(usual, name) == getattr(plain, name)
    assert config.notify is not None and config.notify.on == NotifyConfig().on
    commented = text.replace("# email_block", "email_block").replace("# webhook", "webhook")
    notify = load(commented.replace("# minutes = 45", "minutes = 45")).notify
    assert notify is not None and notify.email_block == "nightly-mail"
    assert notify.webhook is not None and notify.webhook.variables == ("NIGHTLY_TOKEN",)


def test_networks_are_quantized_as_the_file_says_of_all_or_of_one(load: Load, tmp_path: Path):
    np.savez(tmp_path / "digits.npz", data=np.zeros(1))
    config = load(
        """
        out = "fleet"
        quantize = "int8"
        calibration = "random"
        accuracy_drop = 1
        [[model]]
        model = "zoo:mlp"
        name = "usual"
        [[model]]
        model = "zoo:mlp"
        name = "own"
        quantize = "power2"
        calibration = "digits.npz"
        [[model]]
        model = "zoo:mlp"
        name = "floats"
        quantize = "none"
        [[device]]
        name = "pocl"
        """
    )
    requests = [
        config.request(model, device, minutes=1.0, campaign="night")
        for model, device in config.pairs
    ]
    assert [r.quantize for r in requests] == [QuantizeSettings(), POWER2, None]
    assert [r.calibration for r in requests] == ["random", str(tmp_path / "digits.npz"), ""]
    assert [r.accuracy_drop for r in requests] == [1, 1, None]


def test_settings_of_quantization_may_be_a_table(load: Load):
    text = 'calibration = "random"\n' + LEAST
    own = LEAST.replace('"zoo:mlp"', '"zoo:mlp"\nquantize = "none"')
    for written, expected in (
        ('{ method = "kl", skip = ["softmax"] }', QuantizeSettings(method="kl", skip=("softmax",))),
        ('{ scheme = "power2", global_scale = 4 }', replace(POWER2, global_scale=4.0)),
    ):
        config = load(f"quantize = {written}\n{text}")
        assert requested(config).quantize == expected
        assert (
            requested(load(f'quantize = {written}\ncalibration = "random"\n{own}')).quantize is None
        )


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ('"int4"', "quantize: expected one of none, int8, power2"),
        (
            "{ methods = 1 }",
            r"toml: quantize: expected keys among .*, got 'methods'; did you .*",
        ),
        ('{ method = "k" }', "quantize: method: expected one of minmax, .*, got 'k'"),
        ('{ scheme = "none" }', "quantize: scheme: expected one of int8, power2, got"),
        ('{ scheme = "power2", weights = "channel" }', "quantize: scheme power2 rescales by one"),
        ("{ global_scale = -1 }", "quantize: global_scale -1.0 and percentile .*: expected a pos"),
        ("3", "quantize: expected .* got 3"),
    ],
)
def test_a_wrong_setting_of_quantization_is_named(load: Load, written: str, sentence: str):
    with pytest.raises(InputError, match=sentence):
        load(f'quantize = {written}\ncalibration = "random"\n{LEAST}')
    own = LEAST.replace('"zoo:mlp"', f'"zoo:mlp"\nquantize = {written}\ncalibration = "random"')
    with pytest.raises(InputError, match=r"nightly\.toml: model 1: quantize"):
        load(own)


def test_a_devices_way_of_measuring_counts_before_the_files_and_the_models(load: Load):
    config = load(
        """
        out = "fleet"
        repeats = 9
        run_deadline = 20
        [[model]]
        model = "zoo:mlp"
        repeats = 7
        trials_per_task = 100
        [[device]]
        name = "pocl"
        [[device]]
        name = "board"
        device = "nvidia-cuda-0"
        repeats = 3
        cooldown = 0.5
        """
    )
    asked = [config.request(*pair, minutes=1.0, campaign="night") for pair in config.pairs]
    assert [(r.repeats, r.cooldown) for r in asked] == [(7, None), (3, 0.5)]
    assert [(r.run_deadline, r.trials_per_task) for r in asked] == [(20.0, 100)] * 2
    with pytest.raises(InputError, match="device 2: cooldown: expected a number of at most 60"):
        load(LEAST + '[[device]]\nname = "nvidia-cuda-0"\ncooldown = 61')


def test_what_is_left_out_has_its_default(load: Load, tmp_path: Path):
    config = load(LEAST)
    (model,) = config.model
    assert (model.name, model.runs_per_day) == ("mlp", 1.0)
    assert [device.name for _, device in config.pairs] == ["pocl"]
    assert (config.hours, config.timezone, config.schedule) == (None, "UTC", "0 22 * * *")
    assert config.out == str(tmp_path / "fleet")
    assert requested(config).out == str(tmp_path / "fleet/mlp/pocl")


def test_paths_are_relative_to_the_file(load: Load, tmp_path: Path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/face.onnx").write_bytes(b"")
    config = load('records = "../store"\nwork = "w"\n' + LEAST.replace("zoo:mlp", "nets/face.onnx"))
    assert config.model[0].model == str(tmp_path / "nets/face.onnx")
    assert config.model[0].name == "face"
    assert config.records == str(tmp_path.parent / "store")
    assert config.work == str(tmp_path / "w")


def test_default_folders_are_relative_to_the_file_wherever_it_is_read(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Cron and a person work in other folders, and see the same nights."""
    for name in ("RETUNE_RECORDS", "RETUNE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    config = load(LEAST)
    assert config.records == str(tmp_path / "artifacts/records")
    assert config.work == str(tmp_path / "artifacts/cache")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config(Path("../nightly.toml")) == replace(config, file="../nightly.toml")
    monkeypatch.setenv("RETUNE_CACHE", "cache")  # the environment is the process's
    assert load(LEAST).work == str(tmp_path / "elsewhere/cache")


def test_the_example_has_the_folders_of_the_commands_at_the_root(monkeypatch: pytest.MonkeyPatch):
    for name in ("RETUNE_RECORDS", "RETUNE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(EXAMPLE.parents[1])
    config = load_config(EXAMPLE)
    assert Path(config.records) == records_root().absolute()
    assert Path(config.work) == cache_root().absolute()


def test_the_schedule_follows_from_the_window(load: Load):
    text = 'window = { start = "21:30", end = 05:00:00, timezone = "Europe/Berlin" }' + LEAST
    config = load(text)
    assert config.hours == TimeWindow(start=time(21, 30), end=time(5), timezone="Europe/Berlin")
    assert (config.schedule, config.timezone) == ("30 21 * * *", "Europe/Berlin")


def test_a_model_has_its_own_options_over_those_of_the_file(load: Load):
    text = 'seed = 3\ntuner = "ga"\n' + LEAST.replace('"zoo:mlp"', '"zoo:mlp"\ntuner = "xgb"')
    asked = requested(load(text))
    assert (asked.tuner, asked.seed) == ("xgb", 3)


def test_trials_bound_a_network_beside_its_minutes(load: Load):
    asked = requested(load("trials = 300\n" + LEAST))
    assert (asked.trials, asked.minutes, asked.effort) == (300, 1.0, "exhaustive")
    own = requested(load("trials = 300\n" + model("trials = 0")))
    assert own.trials == 0


def test_a_request_says_what_the_night_asks_for(load: Load, tmp_path: Path):
    config = load(
        'max_error = 0\nrecords = "r"\nwork = "w"'
        + LEAST.replace('"zoo:mlp"', '"zoo:mlp"\nshapes = { data = [4, 784] }')
    )
    request = config.request(config.model[0], config.device[0], minutes=7.5, campaign="2026-03-01")
    assert request.model == "zoo:mlp"
    assert request.out == str(tmp_path / "fleet/mlp/pocl")
    assert (request.records, request.work) == (str(tmp_path / "r"), str(tmp_path / "w"))
    assert (request.minutes, request.trials, request.campaign) == (7.5, None, "2026-03-01")
    assert (request.max_error, request.shapes) == (0.0, (("data", (4, 784)),))


def test_values_of_inputs_may_be_numbers_and_ranges(load: Load):
    stated = 'values = { sr = 16000, start = -2, hw = ["8..64", 9] }'
    config = load(LEAST.replace('"zoo:mlp"', f'"zoo:mlp"\n{stated}'))
    request = config.request(*config.pairs[0], minutes=1.0, campaign="")
    assert request.values == (("hw", ("8..64", 9)), ("sr", (16000,)), ("start", (-2,)))


@pytest.mark.parametrize("stated", ['["1..8", 784]', '"1..8,784"'])
def test_shapes_may_be_ranges(load: Load, stated: str):
    config = load(LEAST.replace('"zoo:mlp"', f'"zoo:mlp"\nshapes = {{ data = {stated} }}'))
    request = config.request(config.model[0], config.device[0], minutes=1.0, campaign="")
    assert request.shapes == (("data", ("1..8", 784)),)
    assert not member_faults(config, lambda _: None)


def test_minutes_of_a_model_are_a_number_or_bounds(load: Load):
    def bounds(value: str) -> tuple[float, float | None]:
        text = LEAST.replace('"zoo:mlp"', f'"zoo:mlp"\nminutes = {value}')
        (model,) = load(text).model
        return model.bounds.least, model.bounds.most

    assert bounds("5") == (5.0, 5.0)
    assert bounds("{ least = 2 }") == (2.0, None)
    assert bounds("{ least = 2, most = 2.5 }") == (2.0, 2.5)


def model(*lines: str) -> str:
    return LEAST.replace('"zoo:mlp"', "\n".join(('"zoo:mlp"', *lines)))


NIGHT = 'window = { start = "22:00", end = "06:00" }\n'
HOOK = '[notify]\nwebhook = { url = "https://h.example/x", '
MISTAKES = {
    "no table of models": ('out = "x"', r"model: expected at least one table that begins with"),
    "no folder": (LEAST.replace("out =", "records ="), "out: expected a value, got nothing; add"),
    "empty text": (
        LEAST.replace('"fleet"', '""'),
        "out: expected a text that is not empty, got ''",
    ),
    "a key": ("minuts = 3" + LEAST, "got minuts; did you mean minutes"),
    "a key of a model": (model("runs_pr_day = 3"), "model 1: expected keys among"),
    "the closest key": (model("runs_pr_day = 3"), "got runs_pr_day; did you mean runs_per_day"),
    "one table": (LEAST.replace("[[model]]", "[model]"), "model: expected a list, got a table"),
    "zero minutes": ("minutes = 0" + LEAST, "minutes: expected a number above 0, got 0"),
    "truth": ("minutes = true" + LEAST, "minutes: expected a number, got true"),
    "infinite": ("minutes = inf" + LEAST, "minutes: expected a finite number, got inf"),
    "a fraction": ("keep = 2.5" + LEAST, "keep: expected a whole number, got 2.5"),
    "a scheme": ('quantize = "int4"' + LEAST, "quantize: expected one of .*got 'int4'"),
    "no samples": ('quantize = "int8"' + LEAST, r"model 1: quantize int8: expected samples of"),
    "samples of floats": (model('calibration = "random"'), "are for quantized networks"),
    "a drop": (
        model('quantize = "int8"\ncalibration = "random"\naccuracy_drop = 101'),
        "accuracy_drop: expected a number of at most 100, got 101",
    ),
    "a tuner": ('tuner = "xbg"' + LEAST, "tuner: expected one of .*got 'xbg'; did you mean xgb"),
    "a task scheduler": (
        model('task_scheduler = "x"'),
        r"model 1: task_scheduler: expected one of gradient",
    ),
    "an earlier name": (
        model('allocator = "gradient"'),
        "allocator gradient: expected the new name of this option; write task_scheduler gradient",
    ),
    "an option of before": ('layout_solver = "pbqp"' + LEAST, "layout_solver pbqp: there is one"),
    "what is no key": ('file = "x"' + LEAST, "expected keys among name, out, .*, got file"),
    "a night's own": ('publish = "faster"' + LEAST, "expected keys among .*, got publish"),
    "a model's device": (model('devices = ["pcl"]'), "got 'pcl'; did you mean pocl"),
    "a device twice": (model('devices = ["pocl", "pocl"]'), "devices: expected each device once"),
    "no devices": (model("devices = []"), r"devices: expected a list that is not empty, got \[\]"),
    "a shape": (
        model("shapes = { data = [0, 784] }"),
        "shapes: data 1: expected a whole number of at least 1, got 0",
    ),
    "bounds": (model("minutes = { least = 3, most = 2 }"), "most: expected at least as many"),
    "a name": (model('name = "a b"'), "name: expected letters, digits.*got 'a b'"),
    "names": (
        model('name = "a.b"') + '[[model]]\nmodel = "zoo:kws"\nname = "A-b"\n',
        "another name",
    ),
    "window": ('window = { start = "22", end = "25:00" }' + LEAST, "end: expected a time of the"),
    "no window": ('window = { start = "22:00", end = "22:00" }' + LEAST, "another time than start"),
    "half a window": (
        'window = { start = "22:00" }' + LEAST,
        "window: end: expected a value, got nothing; add",
    ),
    "time zone": (
        'window = { start = "22:00", end = "06:00", timezone = "Europe/Berlm" }' + LEAST,
        "timezone: expected a name .*got 'Europe/Berlm'; did you mean Europe/Berlin",
    ),
    "cron": ('cron = "61 22 * * *"' + LEAST, "cron: expected as minute values from 0 to 59"),
    "cron by day": ('cron = "0 12 * * *"\n' + NIGHT + LEAST, r"06:00, as nothing.*\(12:00\)"),
    "long minutes": (
        "minutes = 481\n" + NIGHT + LEAST,
        "toml: minutes: expected at most 480, which are those of the window, as they are each",
    ),
    "long minutes of a device": (
        NIGHT + LEAST.replace('"pocl"', '"pocl"\nminutes = 500'),
        "device 1: minutes: expected at most 480, .*got 500",
    ),
    "promised minutes": (model("minutes = 61"), "device 1: minutes: expected at least 61, which"),
    "device minutes": (
        model("minutes = 30").replace('"pocl"', '"pocl"\nminutes = 29'),
        r"device 1: minutes: expected at least 30, which .* on pocl, got 29",
    ),
    "retrain": (LEAST + "[retrain]\nevry = 1", r"retrain: expected keys among every.*got evry"),
    "event": (LEAST + '[notify]\non = ["failures"]', "on 1: .*'failures'; did you mean failure"),
    "nobody": (LEAST + '[notify]\non = ["always"]', "expected webhook, command or email_block"),
    "block": (LEAST + '[notify]\nemail_block = "My Mail"', "email_block: .*lower-case letters"),
    "command": (LEAST + '[notify]\ncommand = "mail me"', "command: expected a list.*'mail me'"),
    "address": (
        LEAST + '[notify]\nwebhook = { url = "ftp://x" }',
        "url: expected an address that begins with https",
    ),
    "secret": (LEAST + HOOK + 'headers = { Authorization = "hunter2" } }', "do not store secrets"),
    "variable": (LEAST + HOOK + 'headers = { A = "hunter2${B" } }', "variables written as"),
    "header": (LEAST + HOOK + 'headers = { "A B" = "hunter2" } }', "expected the name of a header"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_that_says_where(load: Load, name: str):
    text, words = MISTAKES[name]
    with pytest.raises(InputError, match=words) as caught:
        load(text)
    message = str(caught.value)
    assert message.startswith(str(Path("nightly.toml"))) or "nightly.toml: " in message
    assert "\n" not in message and "hunter2" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"out = ", "expected TOML, got text that is not"), (b"\xff", "expected text in UTF-8")],
)
def test_a_file_that_is_no_toml_says_so(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "n.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "got"), [("missing.toml", "no file; check the path"), ("", "none (Is a directory)")]
)
def test_a_file_that_is_not_there_says_so(tmp_path: Path, name: str, got: str):
    with pytest.raises(InputError, match=re.escape(f"expected a TOML file, got {got}")):
        load_config(tmp_path / name)


def test_a_folder_that_cannot_be_written_is_known_before_night(load: Load, tmp_path: Path):
    (tmp_path / "fleet").write_text("a file")
    with pytest.raises(InputError, match=r"nightly.toml: out: .*expected a folder, got a file"):
        load(LEAST)


def test_a_member_that_cannot_be_tuned_has_a_reason_and_the_others_have_none(
    load: Load, tmp_path: Path
):
    """What is not there tonight ends no fleet: models, samples, boards."""
    (tmp_path / "there.onnx").write_bytes(b"")
    config = load(
        """
        out = "fleet"
        [[model]]
        model = "zoo:mlp"
        [[model]]
        model = "lost.onnx"
        devices = ["pocl"]
        [[model]]
        model = "zoo:mpl"
        devices = ["pocl"]
        [[model]]
        model = "zoo:kws"
        shapes = { x = [1, 784] }
        devices = ["pocl"]
        [[model]]
        model = "zoo:mlp"
        name = "samples"
        quantize = "int8"
        calibration = "lost.npz"
        devices = ["pocl"]
        [[device]]
        name = "pocl"
        [[device]]
        name = "board"
        device = "unplugged"
        """
    )
    faults = member_faults(config, known)
    assert set(faults) == {
        ("mlp", "board"),
        *((name, "pocl") for name in ("lost", "mpl", "kws", "samples")),
    }
    assert "device 'unplugged' is not known" in faults["mlp", "board"]
    assert "lost.onnx" in faults["lost", "pocl"] and "got no file" in faults["lost", "pocl"]
    assert "did you mean" in faults["mpl", "pocl"]
    assert "zoo:kws has one input" in faults["kws", "pocl"]
    assert "expected an .npz file or a folder of them" in faults["samples", "pocl"]


def test_names_of_the_fleet_become_keys_of_artifacts():
    assert slug("squeezenet_v1.1") == "squeezenet-v1-1"
    assert re.fullmatch(r"[a-z0-9-]+", slug("Ünïcode Netz"))


def test_training_is_due_after_nights_with_enough_records(load: Load):
    retrain = load(LEAST + "[retrain]\nevery = 2\nminimum_records = 100").retrain
    assert not retrain.due(1, 5000)
    assert not retrain.due(2, 99)
    assert retrain.due(2, 100) and retrain.due(3, 100)
    assert not load(LEAST + "[retrain]\nevery = 0").retrain.due(99, 10**6)


def test_pairs_are_every_network_with_its_devices(load: Load):
    text = model('devices = ["nvidia-cuda-0"]') + '[[device]]\nname = "nvidia-cuda-0"\n'
    text += '[[model]]\nmodel = "zoo:kws"\n'
    pairs = [(m.name, d.name) for m, d in load(text).pairs]
    assert pairs == [("mlp", "nvidia-cuda-0"), ("kws", "pocl"), ("kws", "nvidia-cuda-0")]


def test_a_fleet_is_called_by_its_file_or_its_key(load: Load):
    tables = 'out = "out"\n[[model]]\nmodel = "zoo:mlp"\n[[device]]\nname = "pocl"\n'
    assert load(tables).name == "nightly"
    assert load(f'name = "lab"\n{tables}').name == "lab"
    with pytest.raises(InputError, match=r"name: expected letters, digits"):
        load(f'name = "a lab/x"\n{tables}')
