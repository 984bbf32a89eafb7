"""retune: from a trained network to the fastest verified OpenCL bundle."""
