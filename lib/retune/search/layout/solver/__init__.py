"""Choices for a whole graph over a plain table of costs, and the solvers that make them."""
