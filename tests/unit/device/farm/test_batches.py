"""Batches on their way to boards and back: what comes out is what went in, or it is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.codegen.source import ProgramSource
from retune.core.dtypes import NUMPY_DTYPES, DType
from retune.core.errors import InputError
from retune.device.measure.vitals import Vitals
from retune.device.measure.workload import MeasureOptions, Workload, check_fits, packed_weights
from retune.device.remote.batches import (
    Limits,
    ReceivedBatch,
    pack_batch,
    pack_rows,
    pack_workload,
    unpack_batch,
    unpack_rows,
)
from retune.device.remote.wire import (
    WIRE,
    Envelope,
    MessageParts,
    RefusedError,
    Reply,
    digest_of,
    pack,
    pack_arrays,
    unpack,
    unpack_arrays,
)
from retune.records.schema import failed, succeeded
from retune.targets.vta.source import packed_source
from retune.targets.vta.template import KNOBS
from tests.support.measure import WORKLOAD, program
from tests.unit.device import test_accelerator as accelerator

OPTIONS = MeasureOptions(repeat=3, give_up_factor=None, spread_bytes=10)
ROW = succeeded([2.0, 1.0, 3.0], max_abs_err=0.5, reference_us=7.0, build_s=0.1, run_s=0.2)


def job(*sources: ProgramSource, options: MeasureOptions = OPTIONS) -> bytes:
    blob = pack_workload(WORKLOAD)
    digest = digest_of(blob)
    body, arrays = pack_batch(WORKLOAD, digest, sources, options)
    head = Envelope(wire=WIRE, kind="measure", board="k/1", needs=(digest,), body=body)
    return pack(head, MessageParts(arrays=arrays, blobs={digest: blob}))


def received(message: bytes, limits: Limits | None = None) -> tuple[ReceivedBatch, Workload]:
    head, parts = unpack(Envelope, message)
    batch = unpack_batch(head.body, parts, limits or Limits())
    if batch.digest not in parts.blobs:  # a board asks for it
        raise RefusedError(f"no blob {batch.digest}")
    return batch, batch.workload(parts.blobs[batch.digest])


def test_a_board_gets_what_the_client_had():
    sources = [program("a"), program("b")]
    batch, workload = received(job(*sources))
    assert [source.key for source in batch.sources] == [source.key for source in sources]
    assert batch.options == OPTIONS
    for name, array in WORKLOAD.inputs.items():
        np.testing.assert_array_equal(workload.inputs[name], array)
    assert workload.outputs["y"].shape == (2, 2)
    assert (workload.key, workload.rtol, workload.atol) == ("task", WORKLOAD.rtol, WORKLOAD.atol)


def test_packed_constants_travel_packed_and_once():
    message = job(program("a"), program("b"))
    assert len(unpack(Envelope, message)[1].arrays) == 1
    batch, workload = received(message)
    for source in batch.sources:
        (packed,) = packed_weights(workload, source).values()
        np.testing.assert_array_equal(packed, [3, 2, 1, 0])


def through_an_image(source: ProgramSource, row: int) -> ProgramSource:
    """The program, whose second argument and constant is an image."""
    text = "__kernel void k(__global float* x, read_only image2d_t w, __global float* y) {}"
    kernels = (replace(source.kernels[0], text=text, images=(1,)),)
    x, w, y = source.buffers
    return replace(source, kernels=kernels, buffers=(x, replace(w, image=row), y))


def test_images_travel():
    (source,) = received(job(through_an_image(program(), 1)))[0].sources
    assert source.buffer("w").image == 1 and source.buffer("x").image == 0


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (through_an_image(program(), 3), "buffer 'w': expected an image of whole rows, got 4"),
        (through_an_image(program(), -1), "expected an image of whole rows"),
        (through_an_image(program(), 0), "kernel k: expected its images as arguments"),
    ],
)
def test_images_that_are_none_are_refused(source: ProgramSource, sentence: str):
    with pytest.raises(RefusedError, match=sentence):
        received(job(source))


def test_constants_that_are_computed_travel_as_what_came_of_them():
    """Winograd's filters, say, are none of the workload's arrays."""
    source = program("a")
    buffers = [replace(b, name="w.filter") if b.name == "w" else b for b in source.buffers]
    launch = replace(source.launches[0], args=("x", "w.filter", "y"))
    packings = {"w.filter": source.packing("w")}
    given = replace(source, buffers=tuple(buffers), launches=(launch,), packings=packings)
    batch, workload = received(job(given))
    (packed,) = packed_weights(workload, batch.sources[0]).values()
    np.testing.assert_array_equal(packed, [3, 2, 1, 0])


def test_how_outputs_lie_travels():
    """In blocks of channels, say: a board compares them as this machine does."""
    places = np.array([[0, 2], [4, 6]])
    laid = replace(WORKLOAD, positions={"y": places})
    blob = pack_workload(laid)
    source = program("a")
    buffers = [replace(b, elements=8) if b.name == "y" else b for b in source.buffers]
    wide = replace(source, buffers=tuple(buffers))
    body, arrays = pack_batch(laid, digest_of(blob), [wide], OPTIONS)
    workload = unpack_batch(body, MessageParts(arrays=arrays), Limits()).workload(blob)
    np.testing.assert_array_equal(workload.positions["y"], places)
    check_fits(workload, wide)
    with pytest.raises(
        InputError, match="expects 4 elements, and the workload has one at position 6"
    ):
        check_fits(workload, source)


@pytest.mark.parametrize(
    "places",
    [
        {"z": np.zeros((2, 2), np.int64)},
        {"y": np.zeros(4, np.int64)},
        {"y": np.zeros((2, 2), np.int32)},
        {"y": np.full((2, 2), -1)},
    ],
)
def test_malformed_positions_are_refused(places: dict[str, np.ndarray]):
    blob = pack_workload(replace(WORKLOAD, positions=places))
    body, arrays = pack_batch(WORKLOAD, digest_of(blob), [program("a")], OPTIONS)
    batch = unpack_batch(body, MessageParts(arrays=arrays), Limits())
    with pytest.raises(RefusedError, match="expected one for each element"):
        batch.workload(blob)


ACCELERATED = Limits(accelerator=accelerator.CONFIG)


def layer_job(**fields: object) -> str:
    """The body of a job for an accelerator, with other fields of its layer."""
    given = accelerator.workload("layer")
    body, arrays = pack_batch(given, digest_of(b""), [accelerator.GOOD], OPTIONS)
    assert not arrays
    changed = json.loads(body)
    changed["programs"][0]["layer"].update(fields)
    return json.dumps(changed)


def test_a_layer_for_an_accelerator_travels():
    batch = unpack_batch(layer_job(), MessageParts(), ACCELERATED)
    (source,) = batch.sources
    assert source.key == accelerator.GOOD.key
    workload = batch.workload(pack_workload(accelerator.workload("layer")))
    assert {*workload.inputs, *workload.outputs} == {"data", "weight", "output"}


def test_an_order_of_tiles_travels_with_them():
    """Sketches by rule decide it, beside the knobs."""
    good = accelerator.GOOD
    ordered = packed_source(good.work, {**good.decisions, "order": (3,)}, good.config)
    body, _ = pack_batch(accelerator.workload("layer"), digest_of(b""), [ordered], OPTIONS)
    (source,) = unpack_batch(body, MessageParts(), ACCELERATED).sources
    assert source.key == ordered.key


@pytest.mark.parametrize(
    ("body", "limits", "sentence"),
    [
        (layer_job(), Limits(), "expected kernels, got a program of another kind"),
        (
            layer_job(decisions=[[name, 1 << 20] for name in KNOBS]),
            ACCELERATED,
            "expected tiles that fit the accelerator, got others: its inputs exceed their memory",
        ),
        (layer_job(decisions=[]), ACCELERATED, "expected a number for each of tile_b"),
        (layer_job(decisions=[["tile_h", 0]]), ACCELERATED, "expected a number for each of"),
        (layer_job(work={"c": 1, "h": 1, "w": 1, "o": 0}), ACCELERATED, "expected"),
        (layer_job(work=3), ACCELERATED, "expected an object, got 3"),
    ],
)
def test_a_layer_that_is_none_is_refused(body: str, limits: Limits, sentence: str):
    with pytest.raises(InputError, match=sentence):
        unpack_batch(body, MessageParts(), limits)


def test_an_accelerator_takes_no_kernels():
    head, parts = unpack(Envelope, job(program()))
    with pytest.raises(RefusedError, match="expected packed layers, for its accelerator"):
        unpack_batch(head.body, parts, ACCELERATED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reference_us", "0.0"), ("reference_us", "-1.0"), ("reference_us", "1e999"),
        ("calm_us", "1e999"), ("build_s", "-0.5"), ("run_s", "1e999"), ("max_abs_err", "-1.0"),
        ("clock_mhz", "1e999"), ("temperature_c", "-1e999"),
    ],
)  # fmt: skip
def test_numbers_that_no_measurement_has_are_refused(field: str, value: str):
    """Costs follow from the calibration kernel's time: one that is made up would win every race."""
    body = pack_rows([ROW], Vitals(clock_mhz=1000.0, temperature_c=50.0))
    changed = re.sub(rf'"{field}": [^,\n]+', f'"{field}": {value}', body)
    assert changed != body
    with pytest.raises(RefusedError, match="expected"):
        unpack_rows(changed, "board", 1)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            '"disturbed_retries": 2',
            '"disturbed_retries": -1',
            "disturbed_retries: expected 0 or more, got -1",
        ),
        ('"cooldown_s": 0.0', '"cooldown_s": -1.0', "cooldown_s: expected 0 or more, got -1"),
        ('"repeat": 3', f'"repeat": 1{"0" * 400}', "repeat: expected at most 1000, got far more"),
        ('"flops": 4', f'"flops": 4{"0" * 400}', "expected counts of its work"),
        ('"elements": 4', f'"elements": 1{"0" * 400}', "bytes of a program's buffers"),
    ],
)
def test_numbers_that_no_job_has_are_refused(old: str, new: str, sentence: str):
    head, parts = unpack(Envelope, job(program()))
    assert old in head.body
    with pytest.raises(RefusedError, match=sentence):
        unpack_batch(head.body.replace(old, new), parts, Limits())


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_arrays_of_every_type_travel(dtype: DType):
    kind = dtype.numpy
    arrays = {"a": np.ones((2, 3), kind), "scalar": np.array(1, kind), "none": np.empty(0, kind)}
    back = unpack_arrays(pack_arrays(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)


def test_rows_come_back_with_their_board():
    rows = [ROW, failed("wrong_result", "off", max_abs_err=float("inf")), failed("crash", "died")]
    vitals = Vitals(clock_mhz=1800.0, temperature_c=71.5, governor="performance")
    right, wrong, crashed = unpack_rows(pack_rows(rows, vitals), "board-3", 3)
    known = {"instance": "board-3", "clock_mhz": 1800.0, "temperature_c": 71.5}
    assert right == replace(ROW, **known, governor="performance", timestamp=right.timestamp)
    assert abs((right.timestamp - ROW.timestamp).total_seconds()) < 1e-3
    assert (wrong.status, wrong.error, crashed.status) == ("wrong_result", "off", "crash")
    assert wrong.max_abs_err is not None
    assert np.isfinite(wrong.max_abs_err)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A job whose body was changed on its way."""
    head, parts = unpack(Envelope, job(program()))
    body = json.loads(head.body)
    change(body)
    return pack(replace(head, body=json.dumps(body)), parts)


def kernel(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["programs"][0]["kernels"][0].update(fields)


def launch(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["programs"][0]["launches"][0].update(fields)


def buffer(number: int, **fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["programs"][0]["buffers"][number].update(fields)


def option(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["options"].update(fields)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (kernel(name="k; x"), "expected a name in C"),
        (kernel(name="other"), "kernel other: expected the text of a kernel"),
        (kernel(text="// k \0"), "expected the text of a kernel"),
        (kernel(text="k" * 99), "characters of kernel k: expected at most 50, got 99"),
        (launch(global_size=[0, 1, 1]), "expected a range of work-items"),
        (launch(global_size=[1 << 31, 1 << 31, 1]), "expected a range of work-items"),
        (launch(global_size=[1, 1]), "expected a range of work-items"),
        (launch(flops=-1), "expected counts of its work"),
        (launch(flops=1 << 60), "seconds for a program's arithmetic: expected at most 600"),
        (launch(args=["z"]), "no buffer 'z'"),
        (launch(writes=["z"]), "no buffer 'z'"),
        (launch(kernel="z"), "kernel 'z': expected a kernel of the program"),
        (kernel(text=3), "expected a text, got 3"),
        (kernel(images=[0]), "expected its images as arguments"),
        (buffer(0, elements=-1), "expected elements"),
        (buffer(0, dtype="object"), "expected elements"),
        (buffer(0, elements=1 << 50), "bytes of a program's buffers: expected at most"),
        (
            lambda body: body["programs"][0].update(packed={"w": "gone"}),
            "expected its packed array",
        ),
        (buffer(1, elements=5), "expected its packed array"),
        (buffer(0, role="secret"), "expected one of"),
        (buffer(0, name="y"), "names of their own"),
        (lambda body: body["programs"][0].update(kernels=[]), "expected a program of kernels"),
        (lambda body: body["programs"][0].update(options=["-I/etc"]), "build options"),
        (lambda body: body.update(programs=body["programs"] * 9), "candidates: expected at most 8"),
        (lambda body: body.update(rtol=-1.0), "rtol: expected 0 or more"),
        (lambda body: body.pop("digest"), "expected a value"),
        (option(run_deadline_s=1e9), "run_deadline_s: expected at most 600"),
        (option(repeat=10**9), "repeat: expected at most"),
        (option(repeat=0), "repeat: expected a positive number"),
        (option(worst_gflops=1e-9), "worst_gflops: expected at most"),
        (option(cooldown_s=float("nan")), "expected JSON"),
    ],
)
def test_a_job_that_is_none_is_refused(change: Callable[[dict[str, Any]], object], sentence: str):
    limits = Limits(candidates=8, text_chars=50, buffer_bytes=1 << 20)
    with pytest.raises(RefusedError, match=sentence):
        received(changed(change), limits)


def test_a_message_that_is_none_is_refused(rng: np.random.Generator):
    message = job(program())
    for cut in (0, 7, 8, 100, len(message) - 1):
        with pytest.raises(RefusedError):
            received(message[:cut])
    with pytest.raises(RefusedError, match="expected a message of bytes, got str"):
        unpack(Envelope, "text")
    with pytest.raises(RefusedError, match="expected at most 10 bytes"):
        unpack(Envelope, message, 10)
    with pytest.raises(RefusedError, match="with a head"):
        unpack(Envelope, pack_arrays({"a": np.ones(1)}))
    for _ in range(300):
        corrupted = bytearray(message)
        for place in rng.integers(0, len(corrupted), 3):
            corrupted[place] = rng.integers(256)
        try:
            received(bytes(corrupted))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017  either it is refused, or it is a job


def test_a_blob_is_known_by_its_content():
    head, parts = unpack(Envelope, job(program()))
    forged = MessageParts(arrays=parts.arrays, blobs=dict.fromkeys(parts.blobs, b"forged"))
    with pytest.raises(RefusedError, match="expected a blob with digest"):
        unpack(Envelope, pack(head, forged))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda body: body["rows"].pop(), "expected 1 rows from b, got 0"),
        (lambda body: body["rows"][0].update(status="best"), "expected one of"),
        (lambda body: body["rows"][0].update(run_times_us=[0.0]), "expected positive times"),
        (lambda body: body["rows"][0].update(run_times_us=[]), "expected positive times"),
        (lambda body: body["rows"][0].update(status="crash"), "expected positive times"),
        (lambda body: body["rows"][0].update(timestamp="soon"), "timestamp: "),
    ],
)
def test_an_answer_that_is_none_is_refused(
    change: Callable[[dict[str, Any]], object], sentence: str
):
    body = json.loads(pack_rows([ROW], Vitals()))
    change(body)
    with pytest.raises(RefusedError, match=sentence):
        unpack_rows(json.dumps(body), "b", 1)


def test_deep_json_is_refused():
    with pytest.raises(RefusedError):
        unpack_batch("[" * 100_000, MessageParts(), Limits())
    head = Reply(state="done", body="{" * 10)
    assert unpack(Reply, pack(head))[0] == head
