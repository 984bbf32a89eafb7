"""A generator of images by transposed convolutions.

Source: Radford et al. 2016, "Unsupervised Representation Learning with Deep Convolutional
Generative Adversarial Networks", figure 1; with the windows of 4x4 that programs have.
"""

from retune.frontend.zoo.writer import NetWriter, Shape


def dcgan(net: NetWriter, shape: Shape) -> None:
    """A code becomes 4x4 pixels of 1024 channels, and an image of 64x64 by four layers.

    Shapes: data: [n, 100].
    """
    x = net.dense(net.input("data", shape), 1024 * 4 * 4)
    x = net.relu(net.batch_norm(net.reshape(x, (shape[0], 1024, 4, 4))))
    for channels in (512, 256, 128):
        x = net.conv_transpose(x, channels, 4, stride=2, pad=1)
        x = net.relu(net.batch_norm(x))
    net.output(net.tanh(net.conv_transpose(x, 3, 4, stride=2, pad=1, bias=True)), "image")
