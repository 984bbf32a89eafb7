"""What tests of winograd share with others."""

from retune.ir.te import Dag, compute, placeholder, reduce_axis


def nchw(n: int, c: int, h: int, w: int, f: int) -> Dag:
    """NCHW convolution without padding."""
    x = placeholder("x", (n, c, h, w))
    k = placeholder("k", (f, c, 3, 3), constant=True)
    rc, ry, rx = reduce_axis("rc", c), reduce_axis("ry", 3), reduce_axis("rx", 3)
    shape = (n, f, h - 2, w - 2)
    return Dag((compute(
        "conv", shape,
        lambda nn, ff, yy, xx: x[nn, rc.var, yy + ry.var, xx + rx.var] * k[ff, rc.var, ry, rx],
        [x, k], reduce=(rc, ry, rx),
    ),))  # fmt: skip
