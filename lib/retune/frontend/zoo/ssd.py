"""A single-shot detector on a residual backbone, for images of 512 x 512.

Outputs: class probabilities [1, anchors, 21], box offsets [1, anchors, 4] and the anchors
themselves (centre and size in pixels). Decoding and non-maximum suppression stay on the host.
"""

from itertools import pairwise
from math import sqrt

import numpy as np

from retune.frontend.zoo.networks import resnet_features
from retune.frontend.zoo.writer import NetWriter, Shape
from retune.ops import Array

CLASSES = 21
"""Twenty kinds of object, and background."""

SIZES = (51.2, 102.4, 189.4, 276.4, 363.5, 450.6, 492.0)
"""Anchor sizes in pixels; a map has its own and the mean of its own and the next."""

RATIOS = (
    (2.0, 0.5),
    *((2.0, 0.5, 3.0, 1 / 3),) * 3,
    *((2.0, 0.5),) * 2,
)
"""Aspect ratios beside 1 of each map's anchors."""

EXTRA_CHANNELS = (512, 512, 256, 256)
"""Channels of the maps after the backbone, each half as wide as the one before."""


def ssd_resnet50_512(net: NetWriter, shape: Shape) -> None:
    """The detector: six maps, two heads on each."""
    stages = resnet_features(net, net.input("data", shape), (3, 4, 6, 3), bottleneck=True)
    maps = stages[-2:]
    for channels in EXTRA_CHANNELS:
        x = net.conv_norm_relu(maps[-1], max(128, channels // 2), 1)
        maps.append(net.conv_norm_relu(x, channels, 3, stride=2, pad=1))
    scores: list[str] = []
    boxes: list[str] = []
    anchors: list[Array] = []
    for x, sizes, ratios in zip(maps, pairwise(SIZES), RATIOS, strict=True):
        count = 2 + len(ratios)
        scores.append(_head(net, x, count, CLASSES))
        boxes.append(_head(net, x, count, 4))
        anchors.append(_anchors(net.shapes[x][2:], shape[2:], sizes, ratios))
    net.output(net.softmax(net.concat(scores)), "probabilities")
    net.output(net.concat(boxes), "offsets")
    stored = net.constant("anchor_boxes", np.concatenate(anchors)[None])
    net.output(stored, "anchors")


def _head(net: NetWriter, x: str, count: int, values: int) -> str:
    y = net.conv(x, count * values, 3, pad=1, bias=True)
    batch, _, height, width = net.shapes[y]
    last = net.transpose(y, (0, 2, 3, 1))
    return net.reshape(last, (batch, height * width * count, values))


def _anchors(
    grid: Shape, image: Shape, sizes: tuple[float, float], ratios: tuple[float, ...]
) -> Array:
    """[positions * anchors, 4]: centre x, centre y, width, height."""
    small, mean = sizes[0], sqrt(sizes[0] * sizes[1])
    forms = [(small, small), (mean, mean)]
    forms += [(small * sqrt(ratio), small / sqrt(ratio)) for ratio in ratios]
    steps = [whole / part for whole, part in zip(image, grid, strict=True)]
    rows, columns = ((np.arange(part) + 0.5) * step for part, step in zip(grid, steps, strict=True))
    made = np.empty((*grid, len(forms), 4), np.float32)
    made[..., 0] = columns[None, :, None]
    made[..., 1] = rows[:, None, None]
    made[..., 2:] = forms
    return made.reshape(-1, 4)
