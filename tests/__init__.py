"""Tests of retune; `support` holds what they share."""
