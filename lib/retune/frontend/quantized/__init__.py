"""Models that are quantized already, and quantized models as ONNX files."""
