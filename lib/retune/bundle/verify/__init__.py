"""Verification and benchmarks of bundles, in processes of their own."""
