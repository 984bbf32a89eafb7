"""What loads and runs a bundle."""
