"""Prefect for flows and tasks: its server, one task around each stage, dead runs."""
