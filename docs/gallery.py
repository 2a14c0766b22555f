"""Draws the pictures of gallery.md: runs its Python blocks, and saves each one's `picture` where the page shows it.

Use: python docs/gallery.py (`make gallery` does).
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "gallery.md"
_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n\s*!\[[^\]]*\]\((?P<file>[^)]+)\)", re.DOTALL | re.MULTILINE)


def main() -> None:
    names: dict[str, object] = {}
    for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        exec(block["code"], names)
        file, picture = HERE / block["file"], names["picture"]
        file.write_bytes(picture.png() if file.suffix == ".png" else picture.svg().encode())
        sys.stdout.write(f"{file.relative_to(HERE.parent)}: {file.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
