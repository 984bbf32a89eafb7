"""What the benchmarks' command lines have in common."""

import argparse


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser that introduces a program by the first line of its module's docstring."""
    return argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
