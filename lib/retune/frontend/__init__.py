"""How models come in: ONNX files, quantized models, the model zoo."""
