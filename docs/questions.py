"""Write the tables of questions in README.md and docs/index.md, both from docs/questions.toml.

Run it by `make questions`; a test checks that the pages hold what it writes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = {DOCS / "index.md": ("", False), DOCS.parent / "README.md": ("docs/", True)}
"""Each page, the path from it to the documentation, and whether it holds only the rows of the README."""
_TABLE = re.compile(r"(?<=<!-- made from docs/questions\.toml -->\n).*?(?=<!-- end of the questions -->)", re.DOTALL)


def table(folder: str, short: bool) -> str:
    """The table of questions, group by group; `folder` is the path to the documentation."""
    return "\n".join(_lines(folder, short)) + "\n"


def _lines(folder: str, short: bool) -> Iterator[str]:
    yield from ("", "| question | the command that answers it |", "|---|---|")
    for group, rows in tomllib.loads((DOCS / "questions.toml").read_text(encoding="utf-8")).items():
        yield f"| **{group}** | |"
        for row in rows:
            if row.get("readme") or not short:
                yield f"| [{row['question']}]({folder}{row['page']}) | {row['command']} |"
    yield ""


def written(page: Path) -> str:
    """The text of a page with its table made anew."""
    return _TABLE.sub(lambda _: table(*PAGES[page]), page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(written(file), encoding="utf-8")
