"""Passes from a concrete program to one that can be printed, kernel by kernel."""
