"""Inception version 3 (Szegedy et al. 2016), for images of 299 x 299."""

from typing import Any

from retune.frontend.zoo.writer import NetWriter, Shape, Size


def inception_v3(net: NetWriter, shape: Shape) -> None:
    """The network as published, without the auxiliary classifier."""
    x = _layer(net, net.input("data", shape), 32, 3, stride=2)
    x = _layer(net, x, 32, 3)
    x = _layer(net, x, 64, 3, pad=1)
    x = net.pool(x, "MaxPool", 3, stride=2)
    x = _layer(net, x, 80, 1)
    x = _layer(net, x, 192, 3)
    x = net.pool(x, "MaxPool", 3, stride=2)
    for pooled in (32, 64, 64):
        x = _block_a(net, x, pooled)
    x = _reduction_a(net, x)
    for width in (128, 160, 160, 192):
        x = _block_b(net, x, width)
    x = _reduction_b(net, x)
    for _ in range(2):
        x = _block_c(net, x)
    net.output(net.dense(net.global_avg_pool(x), 1000), "logits")


def _layer(net: NetWriter, x: str, channels: int, kernel: Size, **options: Any) -> str:
    y = net.conv(x, channels, kernel, **options)
    return net.relu(net.batch_norm(y, epsilon=1e-3))


def _pooled(net: NetWriter, x: str, channels: int) -> str:
    return _layer(net, net.pool(x, "AveragePool", 3, pad=1), channels, 1)


def _block_a(net: NetWriter, x: str, pooled: int) -> str:
    double = _layer(net, _layer(net, x, 64, 1), 96, 3, pad=1)
    return net.concat(
        [
            _layer(net, x, 64, 1),
            _layer(net, _layer(net, x, 48, 1), 64, 5, pad=2),
            _layer(net, double, 96, 3, pad=1),
            _pooled(net, x, pooled),
        ]
    )


def _reduction_a(net: NetWriter, x: str) -> str:
    double = _layer(net, _layer(net, x, 64, 1), 96, 3, pad=1)
    return net.concat(
        [
            _layer(net, x, 384, 3, stride=2),
            _layer(net, double, 96, 3, stride=2),
            net.pool(x, "MaxPool", 3, stride=2),
        ]
    )


def _row(net: NetWriter, x: str, channels: int) -> str:
    return _layer(net, x, channels, (1, 7), pad=(0, 3))


def _column(net: NetWriter, x: str, channels: int) -> str:
    return _layer(net, x, channels, (7, 1), pad=(3, 0))


def _block_b(net: NetWriter, x: str, width: int) -> str:
    single = _column(net, _row(net, _layer(net, x, width, 1), width), 192)
    double = _row(net, _column(net, _layer(net, x, width, 1), width), width)
    double = _row(net, _column(net, double, width), 192)
    return net.concat([_layer(net, x, 192, 1), single, double, _pooled(net, x, 192)])


def _reduction_b(net: NetWriter, x: str) -> str:
    left = _layer(net, _layer(net, x, 192, 1), 320, 3, stride=2)
    right = _column(net, _row(net, _layer(net, x, 192, 1), 192), 192)
    right = _layer(net, right, 192, 3, stride=2)
    return net.concat([left, right, net.pool(x, "MaxPool", 3, stride=2)])


def _split(net: NetWriter, x: str) -> str:
    row = _layer(net, x, 384, (1, 3), pad=(0, 1))
    column = _layer(net, x, 384, (3, 1), pad=(1, 0))
    return net.concat([row, column])


def _block_c(net: NetWriter, x: str) -> str:
    single = _split(net, _layer(net, x, 384, 1))
    double = _split(net, _layer(net, _layer(net, x, 448, 1), 384, 3, pad=1))
    return net.concat([_layer(net, x, 320, 1), single, double, _pooled(net, x, 192)])
