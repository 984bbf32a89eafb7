"""The page on records has every column of both tables."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from retune.records.arrow import READ_SCHEMA
from retune.records.nights import NIGHTS_SCHEMA

PAGE = Path(__file__).resolve().parents[3] / "docs" / "records.md"


def columns_in(text: str) -> set[str]:
    """What stands in the first cells of its tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "schema"), [("The rows", READ_SCHEMA), ("The table of nights", NIGHTS_SCHEMA)]
)
def test_the_page_has_every_column(heading: str, schema: pa.Schema):
    text = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    bounds = re.compile(r"_(low|high)(?=$|_us$)")  # which the page says once for all
    assert columns_in(text) == {bounds.sub("", name) for name in schema.names}
