"""Quantization: a float network to one of integers that means nearly the same.

`recipe` is the file to read first; `annotate` says what computes with integers, `calibrate` finds
the ranges of values, `realize` writes the new graph by what `arithmetic` knows of integers.
"""
