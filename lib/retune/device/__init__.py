"""OpenCL devices: discovery, building, running, and measurement in a separate process."""
