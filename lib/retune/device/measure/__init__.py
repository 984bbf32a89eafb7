"""Measurement in processes that may die, on devices of this machine."""
