"""The command line and the Prefect flows: wiring, budgets and what the user sees."""
