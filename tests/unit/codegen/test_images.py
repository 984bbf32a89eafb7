"""Constants that are read through images: the text, what is held, who gets an array after all."""

from dataclasses import replace

import numpy as np
import pytest

from retune.bundle.manifest import described_by_text
from retune.codegen.lower import lower
from retune.codegen.network.resident import WAYS
from retune.codegen.passes.images import ImagePack, fits_image
from retune.codegen.source import ProgramSource
from retune.codegen.target import GPU, ONE_BASE, Target
from retune.core.dtypes import FLOAT16, FLOAT32
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule


def product(rows: int, depth: int, columns: int) -> Dag:
    """y[i, j] = sum of x[i, k]*w[k, j], of constant w."""
    x, w = placeholder("x", (rows, depth)), placeholder("w", (depth, columns), constant=True)
    k = reduce_axis("k", depth)
    body = lambda i, j: x[i, k] * w[k, j]  # noqa: E731
    return Dag((compute("y", (rows, columns), body, [x, w], reduce=[k]),))


def by_items(dag: Dag, *, texels: int = 8, lanes: int = 4, items: bool = True) -> Schedule:
    """Rows are groups, or items; `lanes` columns are one vector."""
    s = Schedule(from_dag(dag, "net"))
    outer, inner = s.split("y.j", [lanes])
    s.bind("y.i", "group.1")
    s.bind(outer, "local.0" if items else "group.0")
    s.reorder("y.k", inner)
    s.vectorize(inner)
    s.read_as_image("w", texels)
    return s


def made(dag: Dag, target: Target = GPU, **options: int) -> ProgramSource:
    return lower(by_items(dag, **options).program, target)


def test_rows_of_texels(golden):
    assert made(product(3, 10, 16)).text == golden


def test_one_row(golden):
    assert made(product(3, 4, 8), texels=16).text == golden


def test_the_image_holds_the_constant_and_zeros_behind_it():
    source = made(product(3, 5, 12))
    spec = source.buffer("w")
    assert (spec.image, spec.elements, spec.bytes) == (8, 64, 256)
    w = np.arange(60, dtype=np.float32).reshape(5, 12)
    pack = source.packing("w").pack
    assert pack is not None
    np.testing.assert_array_equal(pack.apply(w), [*range(60), 0, 0, 0, 0])
    assert source.kernels[0].images == (1,)
    assert described_by_text(source.kernels[0].name, source.text).images == (1,)


def test_a_constant_is_packed_before_it_is_an_image():
    s = by_items(product(2, 3, 8), texels=4)
    s.pack("w")
    source = lower(s.program, GPU)
    pack = source.packing("w").pack
    assert isinstance(pack, ImagePack) and pack.order is not None
    w = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_array_equal(pack.apply(w)[:24], w.ravel())  # what items read at once
    assert "read_imagef" in source.text


@pytest.mark.parametrize(
    ("dag", "target", "options"),
    [
        (product(3, 5, 12), GPU, {"lanes": 2}),
        (product(3, 8, 16), GPU, {"lanes": 8}),
        (product(3, 5, 6), GPU, {"lanes": 2}),
        (product(3, 5, 12), GPU, {"items": False}),
        (product(3, 5, 12), replace(GPU, offers=(ONE_BASE,)), {}),
        (product(3, 5, 12), replace(GPU, offers=(next(iter(WAYS)),)), {}),
    ],
    ids=["pairs", "eights", "no texels", "groups of one", "one address", "persistent kernel"],
)
def test_all_others_get_an_array(dag: Dag, target: Target, options: dict[str, int]):
    source = made(dag, target, **options)
    assert "image" not in source.text
    assert source.buffer("w").image == 0 and source.packing("w").pack is None


def test_what_one_kernel_cannot_read_so_no_kernel_reads_so():
    x, w = placeholder("x", (4, 8)), placeholder("w", (4, 8), constant=True)
    y = compute("y", (4, 8), lambda i, j: x[i, j] * w[i, j], [x, w])
    z = compute("z", (4, 8), lambda i, j: y[i, j] + w[i, j], [y, w])

    def text(*vectors: str) -> str:
        s = Schedule(from_dag(Dag((z,))))
        for stage in ("y", "z"):
            outer, inner = s.split(f"{stage}.j", [4])
            s.bind(outer, "local.0")
            if stage in vectors:
                s.vectorize(inner)
        s.read_as_image("w", 8)
        return lower(s.program, GPU).text

    assert text("y", "z").count("read_imagef") == 2
    assert "image" not in text("y") and "image" not in text("z")


@pytest.mark.parametrize(
    ("elements", "dtype", "row", "fits"),
    [
        (64, FLOAT32, 8, True),
        (64, FLOAT32, 3, False),
        (64, FLOAT16, 8, False),
        (0, FLOAT32, 8, False),
        (64, FLOAT32, -8, False),
    ],
)
def test_what_fits_an_image(elements: int, dtype: str, row: int, fits: bool):
    assert fits_image(elements, dtype, row) is fits


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("__kernel void k(__global float* x, __read_only image2d_t w, int n) {}", (1,)),
        ("__kernel void k(image1d_buffer_t a,\n    read_only image3d_t b) {}", (0, 1)),
        ("__kernel void k(__global float* image) {}", ()),
        ("__kernel void other(image2d_t a) {}", ()),
    ],
)
def test_arguments_that_are_images(text: str, numbers: tuple[int, ...]):
    assert described_by_text("k", text).images == numbers
