"""Lowering of scheduled programs and the OpenCL C printer."""
