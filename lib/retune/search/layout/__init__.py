"""Layout selection for a whole network."""
