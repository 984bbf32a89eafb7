"""Import of models: ONNX files, quantized models, the model zoo."""
