"""ONNX models as graphs: functions, operators, host steps."""
