"""The data of a report inside its page: reports can be compared, and be made again.

Read `packed` and `read_report`. The data is JSON, compressed, as the text of a script element that
no browser runs: texts of kernels would otherwise be in the page twice.
"""

import base64
import binascii
import re
import zlib
from pathlib import Path

from retune.core.errors import InputError, RecordError
from retune.core.schema import MOST_BYTES, from_json, to_json
from retune.report.data import ReportData

_ELEMENT = re.compile(rb'<script type="application/x-retune-report">([^<]*)</script>')


def packed(data: ReportData) -> str:
    """The data as the text of the element, the same for the same data."""
    return base64.b64encode(zlib.compress(to_json(data).encode(), 9)).decode()


def read_report(file: Path) -> ReportData:
    """The data of the report in that file.

    Raises: InputError if there is none, or one of a version of retune that stored no data;
    RecordError if the data is damaged.
    """
    try:
        page = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{file}: expected a report, got no such file; `retune tune MODEL --out OUT` writes "
            "OUT/report.html"
        ) from None
    found = _ELEMENT.search(page)
    if found is None:
        raise InputError(
            f"{file}: expected a report with its data, got none, as earlier versions of retune "
            "wrote it; give the `retune tune` command again, which measures nothing anew"
        )
    try:
        text = _unpacked(base64.b64decode(found[1], validate=True))
    except (binascii.Error, zlib.error) as error:
        raise RecordError(
            f"{file}: expected the data of a report, got damaged bytes ({error}); give the "
            "`retune tune` command again, which measures nothing anew"
        ) from error
    return from_json(ReportData, text, where=str(file))


def _unpacked(data: bytes) -> bytes:
    """At most MOST_BYTES, whatever the compressed bytes say; one more is refused where it is read.

    Raises: zlib.error.
    """
    return zlib.decompressobj().decompress(data, MOST_BYTES + 1)
