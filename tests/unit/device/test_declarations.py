"""Which of a header's declarations a program brings along."""

from pathlib import Path

import pytest

from retune.device.opencl.declarations import abridged, find_header

HEADER = """\
/* fma(1, 2, 3); */
#ifndef _OPENCL_H_
#define _OPENCL_H_
#include "base.h"
#define __ovld __attribute__((overloadable))
#define TWICE(x) twice(x) // once();
float __ovld fma(float a, float b, float c);
float __ovld exp(float x); float __ovld twice(float x);
#if defined(cl_khr_fp64) && \\
    1
double __ovld fma(double a,
                  double b, double c);
#endif
double __ovld once(double x);
#endif
"""


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "opencl-c.h"
    path.write_text(HEADER)
    return path


def test_a_program_brings_all_overloads_of_what_it_names_under_their_conditions(header: Path):
    assert abridged("y = fma(a, b, c);", header).splitlines() == [
        "#undef _OPENCL_H_",
        "#ifndef _OPENCL_H_",
        "#define _OPENCL_H_",
        "#define __ovld __attribute__((overloadable))",
        "#define TWICE(x) twice(x)",
        "float __ovld fma(float a, float b, float c);",
        "float __ovld twice(float x);",
        "#if defined(cl_khr_fp64) && \\",
        "    1",
        "double __ovld fma(double a,",
        "                  double b, double c);",
        "#endif",
        "#endif",
        "#line 1",
        "y = fma(a, b, c);",
    ]


def test_vector_access_is_defined_and_not_declared(tmp_path: Path):
    header = tmp_path / "opencl-c.h"
    header.write_text(
        "void vstore4(float4 v, size_t n, __global float* p);\nint4 vload4(int* p);\n"
    )
    short = abridged("vstore4(vload4(0, p), 0, q);", header)
    assert "void vstore4(float4 v, size_t n, __global float* p);" not in short
    assert "int4 vload4(int* p);" not in short
    assert "vstore4(const float4 value, const size_t at, __global float* to) {" in short
    assert "vload4(const size_t at, const __global float* from) {" in short
    assert "vstore8" not in short and "vload8" not in short


def test_names_are_whole_words(header: Path):
    short = abridged("y = exp10(expo, fma_2);", header)
    assert "exp(float" not in short
    assert "fma(" not in short


def test_the_header_of_the_pocl_that_pyopencl_brings_is_found():
    pytest.importorskip("pocl_binary_distribution")
    found = find_header()
    assert found is not None
    short = abridged("vload16(0, x)", found)
    assert "vload16(" in short
    assert len(short) < found.stat().st_size // 10
