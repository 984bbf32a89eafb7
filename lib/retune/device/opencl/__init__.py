"""Devices that speak OpenCL: discovery, building, running, probing."""
