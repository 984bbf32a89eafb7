"""Device classes as schedule functions: rules for all programs, and templates."""
