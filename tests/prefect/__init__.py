"""Tests that talk to a real Prefect server."""
