"""The graph passes: each takes a valid graph to one with the same outputs."""
