"""What tests of quantize share with others."""

from pathlib import Path

DIGITS = Path(__file__).parents[1] / "data" / "digits"
