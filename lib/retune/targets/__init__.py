"""What is known of device classes, as schedule functions: rules for all programs, and templates."""
