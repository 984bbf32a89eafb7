"""What several test modules share: inputs, fakes, oracles, builders of models."""
