"""GGUF files: their reader, their quantized blocks, and the ONNX models that are made of them."""
