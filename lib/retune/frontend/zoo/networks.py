"""Classifiers of the zoo, layer by layer as published.

Each builder takes a writer and the input's shape and writes one network.
"""

from collections.abc import Callable

from retune.frontend.zoo.writer import NetWriter, Shape

Builder = Callable[[NetWriter, Shape], None]


def mlp(net: NetWriter, shape: Shape) -> None:
    """784-128-10 with rectifier and softmax."""
    hidden = net.relu(net.dense(net.input("data", shape), 128))
    net.output(net.softmax(net.dense(hidden, 10)), "prob")


def kws(net: NetWriter, shape: Shape) -> None:
    """TC-ResNet14 (Choi et al. 2019), which spots 12 keywords: convolutions along time only.

    Shapes: data: [n, 40 mel channels, 98 frames].
    """
    x = net.conv(net.input("data", shape), 16, 3, pad=1)
    for channels in (24, 32, 48):
        for stride in (2, 1):
            y = net.conv_norm_relu(x, channels, 9, stride=stride, pad=4)
            y = net.conv_norm(y, channels, 9, pad=4)
            if stride != 1:
                x = net.conv_norm_relu(x, channels, 1, stride=stride)
            x = net.relu(net.add(y, x))
    net.output(net.softmax(net.dense(net.global_avg_pool(x), 12)), "prob")


def resnet_features(
    net: NetWriter, x: str, depths: tuple[int, ...], *, bottleneck: bool
) -> list[str]:
    """The output of each stage of a version 1 residual network."""
    x = net.conv_norm_relu(x, 64, 7, stride=2, pad=3)
    x = net.pool(x, "MaxPool", 3, stride=2, pad=1)
    stages: list[str] = []
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _residual(net, x, width, stride, bottleneck=bottleneck)
        stages.append(x)
    return stages


def _residual(net: NetWriter, x: str, width: int, stride: int, *, bottleneck: bool) -> str:
    made = width * 4 if bottleneck else width
    if bottleneck:
        y = net.conv_norm_relu(x, width, 1, stride=stride)
        y = net.conv_norm_relu(y, width, 3, pad=1)
        y = net.conv_norm(y, made, 1)
    else:
        y = net.conv_norm_relu(x, width, 3, stride=stride, pad=1)
        y = net.conv_norm(y, made, 3, pad=1)
    if stride != 1 or net.shapes[x][1] != made:
        x = net.conv_norm(x, made, 1, stride=stride)
    return net.relu(net.add(y, x))


def resnet18_v1(net: NetWriter, shape: Shape) -> None:
    """Residual network of 18 layers (He et al. 2016), version 1."""
    x = resnet_features(net, net.input("data", shape), (2, 2, 2, 2), bottleneck=False)[-1]
    net.output(net.dense(net.global_avg_pool(x), 1000), "logits")


def resnet50_v1(net: NetWriter, shape: Shape) -> None:
    """Residual network of 50 layers, version 1: the stride is in the first 1x1 convolution."""
    x = resnet_features(net, net.input("data", shape), (3, 4, 6, 3), bottleneck=True)[-1]
    net.output(net.dense(net.global_avg_pool(x), 1000), "logits")


MOBILENET_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""Output channels and stride of each depthwise-separable block."""


def mobilenet(net: NetWriter, shape: Shape) -> None:
    """MobileNet version 1 (Howard et al. 2017)."""
    x = net.conv_norm_relu(net.input("data", shape), 32, 3, stride=2, pad=1)
    for channels, stride in MOBILENET_BLOCKS:
        own = net.shapes[x][1]
        x = net.conv_norm_relu(x, own, 3, stride=stride, pad=1, groups=own)
        x = net.conv_norm_relu(x, channels, 1)
    net.output(net.softmax(net.dense(net.global_avg_pool(x), 1000)), "prob")


def _fire(net: NetWriter, x: str, squeeze: int, expand: int) -> str:
    x = net.conv_relu(x, squeeze, 1)
    return net.concat([net.conv_relu(x, expand, 1), net.conv_relu(x, expand, 3, pad=1)])


def squeezenet_v1_1(net: NetWriter, shape: Shape) -> None:
    """SqueezeNet 1.1 (Iandola et al. 2016)."""
    x = net.conv_relu(net.input("data", shape), 64, 3, stride=2)
    for stage in (((16, 64),) * 2, ((32, 128),) * 2, ((48, 192),) * 2 + ((64, 256),) * 2):
        x = net.pool(x, "MaxPool", 3, stride=2, ceil=True)
        for squeeze, expand in stage:
            x = _fire(net, x, squeeze, expand)
    net.output(net.global_avg_pool(net.conv_relu(x, 1000, 1)), "logits")


def vgg19_bn(net: NetWriter, shape: Shape) -> None:
    """VGG with 19 layers and batch norm (Simonyan, Zisserman 2015)."""
    x = net.input("data", shape)
    for channels, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            x = net.conv_norm_relu(x, channels, 3, pad=1, bias=True)
        x = net.pool(x, "MaxPool", 2, stride=2)
    x = net.flatten(x)
    for _ in range(2):
        x = net.relu(net.dense(x, 4096))
    net.output(net.dense(x, 1000), "logits")


def densenet201(net: NetWriter, shape: Shape) -> None:
    """Densely connected network of 201 layers (Huang et al. 2017): batch norm before each."""
    growth = 32
    x = net.conv_norm_relu(net.input("data", shape), 64, 7, stride=2, pad=3)
    x = net.pool(x, "MaxPool", 3, stride=2, pad=1)
    depths = (6, 12, 48, 32)
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            y = net.conv(net.relu(net.batch_norm(x)), 4 * growth, 1)
            y = net.conv(net.relu(net.batch_norm(y)), growth, 3, pad=1)
            x = net.concat([x, y])
        x = net.relu(net.batch_norm(x))
        if stage + 1 < len(depths):
            x = net.pool(net.conv(x, net.shapes[x][1] // 2, 1), "AveragePool", 2, stride=2)
    net.output(net.dense(net.global_avg_pool(x), 1000), "logits")
