"""Prefect tasks: one file for each stage of a run."""
