"""The stages of a tuning run: each is run once for its inputs, and verified when reused."""
