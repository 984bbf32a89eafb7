"""Errors, content keys, data types and device limits: what every other package stands on."""
