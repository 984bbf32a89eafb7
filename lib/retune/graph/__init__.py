"""The network level: graph values, ops, ONNX import, passes, fusion into groups, the model zoo."""
