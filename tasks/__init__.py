"""Prefect tasks around the library's stages, and the Prefect server that they report to."""
