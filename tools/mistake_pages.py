"""Write the pages of the catalogue of mistakes: python tools/mistake_pages.py"""

from __future__ import annotations

from pathlib import Path

from engramctl.mistakes import pages

FOLDER = Path(__file__).parent.parent / "engramctl" / "mistakes"

if __name__ == "__main__":
    for name, text in pages.pages().items():
        (FOLDER / name).write_text(text, "utf-8")
