"""retune: from a trained network to the fastest verified OpenCL bundle."""

__version__ = "0.1.0"
