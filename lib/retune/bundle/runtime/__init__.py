"""The runtime: it loads and runs a bundle."""
