"""Rules for CPU devices. Read `space`."""
