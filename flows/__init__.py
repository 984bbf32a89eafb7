"""The flows: one file for each."""
