"""One module for each command of `retune`; each imports what it needs when it runs."""
