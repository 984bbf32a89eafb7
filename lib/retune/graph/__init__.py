"""The network level: graph values, ops, ONNX import, passes, fusion into groups, the model zoo."""

from retune.graph import scan

__all__ = ["scan"]
