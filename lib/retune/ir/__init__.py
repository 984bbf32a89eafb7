"""Scalar expressions, tensor expressions and loop programs, with their numpy meaning."""
