"""Networks that come with retune: builders with seeded weights, written as ONNX files."""

from retune.frontend.zoo.dcgan import dcgan
from retune.frontend.zoo.inception import inception_v3
from retune.frontend.zoo.light import LIGHT
from retune.frontend.zoo.networks import (
    Builder,
    densenet201,
    kws,
    mlp,
    mobilenet,
    resnet18_v1,
    resnet50_v1,
    squeezenet_v1_1,
    vgg19_bn,
)
from retune.frontend.zoo.ssd import ssd_resnet50_512

IMAGE = (1, 3, 224, 224)

ZOO: dict[str, tuple[Builder, tuple[int, ...]]] = {
    "dcgan": (dcgan, (1, 100)),
    "densenet201": (densenet201, IMAGE),
    "inception_v3": (inception_v3, (1, 3, 299, 299)),
    "kws": (kws, (1, 40, 98)),
    "mlp": (mlp, (1, 784)),
    "mobilenet": (mobilenet, IMAGE),
    "resnet18_v1": (resnet18_v1, IMAGE),
    "resnet50_v1": (resnet50_v1, IMAGE),
    "squeezenet_v1.1": (squeezenet_v1_1, IMAGE),
    "ssd_resnet50_512": (ssd_resnet50_512, (1, 3, 512, 512)),
    "vgg19_bn": (vgg19_bn, IMAGE),
}
"""Name -> builder and the shape of the input `data`."""

__all__ = ["LIGHT", "ZOO", "Builder"]
