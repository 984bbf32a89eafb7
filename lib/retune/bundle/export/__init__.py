"""Bundles as programs in C, for machines without Python."""
