"""Rules for GPU devices. Read `space`."""
