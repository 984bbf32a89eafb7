"""Host steps: ONNX models that run in numpy, between the kernels of a network."""
