"""Write the tables of commands in README.md, on the first page and on the landing pages, all from docs/questions.toml.

Run it by `make questions`; a test checks that the pages hold what it writes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PAGES: dict[Path, tuple[str, Collection[str]]] = {
    DOCS / "index.md": ("", ()),
    DOCS.parent / "README.md": ("docs/", ()),
    DOCS / "train.md": ("", ("Train a model",)),
    DOCS / "serve.md": ("", ("Serve a model",)),
    DOCS / "architect.md": ("", ("Kernels, and sharing a GPU", "Hardware studies")),
    DOCS / "research.md": ("", ("Your own programs, traces and machines", "Trust and tools")),
}
"""Each page, the path from it to the documentation, and its groups; without groups, the rows of the README."""
_TABLE = re.compile(r"(?<=<!-- made from docs/questions\.toml -->\n).*?(?=<!-- end of the questions -->)", re.DOTALL)


def table(folder: str, groups: Collection[str]) -> str:
    """Return the table of commands, group by group; `folder` is the path to the documentation."""
    return "\n".join(_lines(folder, groups)) + "\n"


def _lines(folder: str, groups: Collection[str]) -> Iterator[str]:
    yield from ("", "| task | command |", "|---|---|")
    for group, rows in tomllib.loads((DOCS / "questions.toml").read_text(encoding="utf-8")).items():
        shown = [row for row in rows if group in groups or (not groups and row.get("readme"))]
        if shown:
            yield f"| **{group}** | |"
        for row in shown:
            yield f"| [{row['question']}]({folder}{row['page']}) | {row['command']} |"
    yield ""


def written(page: Path) -> str:
    """Return the text of a page with its table made anew."""
    return _TABLE.sub(lambda _: table(*PAGES[page]), page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(written(file), encoding="utf-8")
