"""OpenCL C as a renderer."""
