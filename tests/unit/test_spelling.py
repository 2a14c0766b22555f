"""Words that may not come back in what users read, and terms of the field that must be found: they search for these."""

import ast
import re
from pathlib import Path

import click
import pytest

from weft.cli.main import weft

ROOT = Path(__file__).resolve().parents[2]
RETIRED = {
    r"keys and values of": "KV cache: the term of every serving engine",
    r"keys and values take": "KV cache",
    r"\breaders and writers\b|\b\d+ readers\b|\bwriters bound\b": "prefill and decode workers",
    r"further tokens?\b|each further one": "decode tokens, TPOT or ITL",
    r"\bgood (ones|answers?)\b|answers that are good": "SLO attainment and goodput",
    r"\bcomputed? (\w+ )?again\b": "recomputed (activation checkpointing)",
    r"\bset apart\b|\b(CUs|SMs) apart\b": "reserved CUs or SMs",
    r"over one after the other|as one after the other": "over running serially",
    r"\blost are\b|\b(writers|readers|load) bounds?\b": "answer first, without inversion or personification",
    r"in sight of (these|the software) costs": "in-sample, held out",
    r"added in thought": "hypothetical",
    r"\bhow sure\b": "expected error, 80 % interval",
    r"Layouts that fall|[Pp]lans that are out": "infeasible plans",
    r"no fewer GPUs and no faster": "dominated",
    r"--(beside|readers|step-tokens|memory-share|speculate|accept|curve)(?![\w-])": "options as vLLM spells them",
}
"""Patterns that are retired, with what to write instead."""
MAY = {
    "docs/deviations.md": "quotes sources",
    "docs/glossary.md": "lists retired words, so that search finds them",
}
"""Pages that may have retired words."""
REQUIRED = {
    "serve": (
        "KV cache", "TTFT", "TPOT", "ITL", "goodput", "SLO", "chunked prefill", "continuous batching",
        "speculative decoding", "prefix caching", "disaggregated prefill", "Pareto", "two-batch overlap",
    ),
    "decode": ("KV cache", "inter-token latency", "chunked prefill", "speculative decoding", "expert parallelism"),
    "prefill": ("TTFT", "prefix caching", "KV cache"),
    "step": (
        "activation checkpointing", "tensor parallelism", "pipeline parallelism", "context parallelism",
        "expert parallelism", "sequence parallelism", "data parallelism", "ZeRO", "MFU", "MoE dispatch and combine",
    ),
    "advise corun": ("co-run", "reserved"),
    "advise fuse": ("co-run", "all-reduce", "80 % interval"),
}  # fmt: skip
"""Terms that the help page of a command must have, as users search for them there."""
MESSAGES = ("cli", "view", "plan", "serving", "step")
"""Packages whose texts users read."""


def help_page(*names):
    command, context = weft, click.Context(weft, info_name="weft")
    for name in names:
        command = command.get_command(context, name)
        context = click.Context(command, parent=context, info_name=name)
    return " ".join(command.get_help(context).split())


def messages(path):
    """The texts of a file that are no docstrings, with the numbers of their lines."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


@pytest.mark.parametrize("pattern", RETIRED)
def test_no_page_has_a_retired_phrase(pattern):
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [page.relative_to(ROOT).as_posix() for page in pages if re.search(pattern, page.read_text())]
    assert [name for name in names if name not in MAY] == [], f"write instead: {RETIRED[pattern]}"


@pytest.mark.parametrize("package", MESSAGES)
def test_no_message_has_a_retired_phrase(package):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}; write instead: {RETIRED[pattern]}"
        for path in sorted((ROOT / "src" / "weft" / package).rglob("*.py"))
        for line, text in messages(path)
        for pattern in RETIRED
        if re.search(pattern, text)
    ]
    assert not found


@pytest.mark.parametrize("pattern", RETIRED)
def test_no_help_page_has_a_retired_phrase(pattern):
    pages = {name: help_page(name) for name in weft.list_commands(click.Context(weft))}
    assert [name for name, text in pages.items() if re.search(pattern, text)] == [], RETIRED[pattern]


@pytest.mark.parametrize("command", REQUIRED)
def test_a_help_page_has_the_terms_that_users_search_for(command):
    page = help_page(*command.split()).lower()
    assert [term for term in REQUIRED[command] if term.lower() not in page] == []


@pytest.mark.parametrize("term", sorted({term for terms in REQUIRED.values() for term in terms}))
def test_the_pages_have_every_term_that_help_has(term):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(term.lower() in " ".join(page.read_text().split()).lower() for page in pages)
