"""Simulated devices: boards and the VTA accelerator."""
