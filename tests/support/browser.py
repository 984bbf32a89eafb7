"""Pages in headless Chromium, at the width of a phone or a screen.

A window is at least 500 pixels wide, so the page is shown in a frame.
"""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

needs_chromium = pytest.mark.skipif(which("chromium") is None, reason="chromium is not installed")

_ERRORS = """<script>
const errors = [];
window.addEventListener("error", (event) => errors.push(event.message));
</script>"""
"""Before the page's own script."""
_TOLD = """
told.push(document.documentElement.scrollWidth <= window.innerWidth);
told.push(errors.join("; ") || "none");
parent.document.body.setAttribute("data-told", told.join("|"));
"""


def told(html: str, script: str, width: int, folder: Path) -> list[str]:
    """What a script that runs behind a page pushes to its list `told`.

    Behind it: whether the page fits the width, and its errors.
    """
    page, frame = folder / "page.html", folder / "frame.html"
    behind = f"<script>\nconst told = [];\n{script}{_TOLD}</script></html>"
    page.write_text(html.replace("<main>", f"{_ERRORS}<main>").replace("</html>", behind), "utf-8")
    frame.write_text(f'<iframe src="page.html" width="{width}" height="900"></iframe>', "utf-8")
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--allow-file-access-from-files", "--window-size=1500,1000", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r'data-told="([^"]*)"', done.stdout)
    assert found is not None
    return found[1].split("|")
