"""Self-contained HTML pages of runs: `html.render`."""
