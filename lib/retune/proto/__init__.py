"""ONNX protobufs: reading files safely, and what names stand for in their scopes."""
