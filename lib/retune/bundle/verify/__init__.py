"""What checks and times a bundle, in processes of its own."""
