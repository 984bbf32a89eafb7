"""What tests of winograd share with others."""

from retune.ir.te import Dag, compute, placeholder, reduce_axis
from tests.support.dags import conv2d, dense, depthwise


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


OTHERS: dict[str, Dag] = {
    "few channels": conv2d(1, 8, 8, 15, 16),
    "few made": conv2d(1, 8, 8, 16, 8),
    "stride": conv2d(1, 8, 8, 16, 16, stride=2),
    "point": conv2d(1, 8, 8, 16, 16, 1, pad=0),
    "depthwise": depthwise(1, 8, 8, 16),
    "dense": dense(4, 32, 32),
}
"""Tasks that no device transforms."""
