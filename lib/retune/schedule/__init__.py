"""Schedules: a tensor program, the primitives that rewrite it, and the trace of what was done."""
