"""The self-contained HTML report of a tuning run."""
