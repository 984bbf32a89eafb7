"""A tuned network as files, and what runs, checks and times it."""
