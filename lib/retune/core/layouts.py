"""How the values between convolutions lie, by the names that users choose from."""

LAYOUTS = ("NHWC", "NCHW", "NCHW16c")
"""Pixels of all channels; planes of one channel; planes of pixels of 16 channels."""
