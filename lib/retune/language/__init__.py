"""Text generation with bundles of decoders: sampling, tokens, and the loop over calls."""
