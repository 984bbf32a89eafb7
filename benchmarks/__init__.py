"""Programs that measure: never part of the tests. Each one prints a table and can write JSON."""
