"""`retune ops`: what is imported follows from the registries, and is told in a few words."""

import json

import pytest
from onnx import TensorProto, defs
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from retune.cli.main import run_command
from retune.core.errors import LookupFailed, ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops import full_name, names, versions_of
from retune.frontend.onnx.support import (
    OperatorVersion,
    Support,
    newest_opset,
    support_of,
    supported,
)
from tests.support.networks import model, node


def test_the_table_has_every_operator_with_a_handler(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops"]) == 0
    printed = capsys.readouterr().out
    for name in names():
        assert support_of(name).imported == (f"\n {name} " in printed), name
    assert "With known inputs everything is folded." in printed


def test_one_operator_is_told_by_version(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops", "Softmax"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Softmax, opsets 7-",
        "  from 7   kernels: Until opset 12: over all dimensions from `axis` on, as if they were "
        "one.",
        "  from 13  kernels: From opset 13 on: over one axis, the last by default.",
    ]


def test_limits_stand_beside_the_version_that_has_them(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops", "Dropout"]) == 0
    assert "limits: inference only" in capsys.readouterr().out


def test_data_for_programs(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["Conv"]["how"] == "kernels"
    assert found["Shape"]["how"] == "folded"
    assert (found["Celu"]["how"], found["Celu"]["opsets"]) == ("function", "12-")
    assert found["RandomNormal"]["how"] == "none"
    assert {name for name, entry in found.items() if not entry["versions"]} == {
        name for name, entry in found.items() if entry["how"] == "none"
    }


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Bernoulli", "none"),
        ("AffineGrid", "function"),
        ("SequenceMap", "function"),
        ("TfIdfVectorizer", "host"),
        ("StringConcat", "none"),
        ("Det", "host"),
        ("Celu", "function"),
        ("FusedConv", "kernels"),
        ("com.microsoft::Trilu", "kernels"),
        ("com.microsoft::QLinearAdd", "kernels"),
        ("BeamSearch", "refused"),
        ("ai.onnx.ml::ZipMap", "kernels"),
    ],
)
def test_how_an_operator_is_imported(name: str, how: str):
    assert support_of(name).way == how


def test_how_an_operator_is_imported_may_change():
    versions = (
        OperatorVersion(since=7, way="host", meaning=""),
        OperatorVersion(since=9, way="host", meaning="", limits="no pads"),
        OperatorVersion(since=13, way="kernels", meaning="", limits="no pads"),
    )
    changing = Support(name="Own", versions=versions, until=17)
    assert changing.way == "host, kernels from 13"
    assert (changing.opsets, changing.limits) == ("7-17", "no pads")


def test_an_unknown_name_lists_close_ones(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops", "softmaks"]) == 2
    assert "close names: Softmax" in capsys.readouterr().err
    with pytest.raises(LookupFailed, match="is not an operator of ONNX's opsets 7 to"):
        support_of("Conv7d")


def test_every_handler_is_of_an_operator_that_onnx_or_onnxruntime_has():
    stated = [*defs.get_all_schemas_with_history(), *get_all_operator_schema()]
    known = {full_name(schema.domain, schema.name) for schema in stated}
    spelt = {
        f"com.microsoft::{op}"
        for op in ("LayerNormalization", "SimplifiedLayerNormalization", "QLinearMatMul")
    }
    assert names() - known == spelt, "exporters put the default domain's operators there"


def test_what_is_refused_says_what_to_do_instead(capsys: pytest.CaptureFixture[str]):
    assert run_command(["ops", "BeamSearch"]) == 0
    assert "is refused. It is the loop of text generation: export" in capsys.readouterr().out


def test_a_name_that_several_domains_have_is_told_with_its_domain(
    capsys: pytest.CaptureFixture[str],
):
    assert run_command(["ops", "--json", "Trilu"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["domain"] == ""
    assert support_of("FastGelu").name == "com.microsoft::FastGelu"


def test_every_handler_says_what_it_does():
    for name in names():
        for since, handler in versions_of(name).items():
            assert (handler.__doc__ or "").strip(), f"{name} since {since}"


def test_a_retired_operator_ends():
    upsample = support_of("Upsample")
    assert upsample.until == 9
    assert defs.get_schema("Upsample", 10).deprecated


def test_what_is_listed_as_missing_is_refused():
    missing = [s.name for s in supported() if not s.versions]
    assert missing
    for name in missing:
        domain, _, op = name.rpartition("::")
        schema = defs.get_schema(op, domain)
        texts = any(entry.types == {"tensor(string)"} for entry in schema.inputs)
        element = TensorProto.STRING if texts else TensorProto.FLOAT
        proto = node(op, ["x"] * schema.min_input, ["y"], domain=domain)
        opset = schema.since_version if not domain else newest_opset()
        made = model([proto], {"x": [2]}, opset=opset, element=element)
        with pytest.raises(ModelError):
            import_model(made)
