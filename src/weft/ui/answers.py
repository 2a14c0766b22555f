"""Answers of commands as parts of a page: the function that a command calls, and the report that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import click

from weft.cli.output import Outputs
from weft.core.answer import Answer
from weft.core.contrast import Contrast
from weft.core.errors import InputError
from weft.core.report import Report, Table
from weft.core.report.table import Column, number, plain
from weft.ui.state import TABS, State, arguments, find_command, params_of, show_command
from weft.view import answers
from weft.view.page import conclusions, fragment

Message = dict[str, Any]
"""What a page is told: its `kind`, and what that kind has."""


class _Kept(Outputs):
    """Takes the place of a command's outputs: keeps what the command shows, and prints nothing."""

    shown: Any = None

    def show(self, shown: Any, *_: Any, **__: Any) -> None:
        """Keep what the command shows."""
        self.shown = shown


def ask(words: Sequence[str]) -> tuple[Report[Any], str]:
    """Return the report of a command line, as the command prints it, and the line that states another clock.

    Raises what the command raises.
    """
    path = next(tab for tab in _PATHS if tuple(words[: len(tab)]) == tab)
    kept = _Kept()
    command = find_command(path)
    with command.make_context(f"weft {' '.join(path)}", list(words[len(path) :]), obj=kept) as context:
        command.invoke(context)
    return (answers.report(kept.shown) if isinstance(kept.shown, Answer) else kept.shown), kept.state


_PATHS = tuple(dict.fromkeys(path for tab in TABS.values() for path in tab.commands))


def question(tab: str, state: State, at: int | None = None) -> list[str]:
    """Return the command line of a tab's state, or that of its further question number `at`."""
    of = TABS[tab]
    if at is None:
        return arguments(of.command, state)
    more = of.asks[at]
    return arguments(more.command or of.command, state, more.added)


def answer(tab: str, state: State, at: int | None = None) -> Iterator[Message]:
    """Yield the command of a state, its conclusions as soon as they are known, then the rest of its report.

    Of a further question that follows every change only the conclusions are told.
    """
    words = question(tab, state, at)
    yield {"kind": "command", "text": show_command(words)}
    report, clock = ask(words)
    yield {"kind": "lead", "html": lead(report, clock)}
    if at is not None and TABS[tab].asks[at].is_live:
        return
    yield {"kind": "answer", "html": fragment(report, "main-" if at is None else f"ask{at}-")}
    if at is None and (launch := launch_text(report.answer)):
        yield {"kind": "launch", "text": launch[1], "title": launch[0]}


def lead(report: Report[Any], clock: str = "") -> str:
    """Return title and conclusions of a report as HTML."""
    first, more = conclusions(report)
    said = "".join(f"<li>{escape(one)}</li>" for one in [*filter(None, [clock]), *more])
    return f'<h2>{escape(report.title())}</h2><p class="lead">{escape(first)}</p><ul>{said}</ul>'


def launch_text(found: Any) -> tuple[str, str] | None:
    """Return the launcher that starts the plan of an answer, and its file or command; None where Weft writes none."""
    from weft.plan.launch import ENGINES, LAUNCHERS, NO_FRAMEWORK, launch
    from weft.serving.result import Serving
    from weft.step.result.step import Step

    if isinstance(found, Step):
        names = [name for name, one in LAUNCHERS.items() if one.framework == found.framework.name]
        framework = found.framework
    elif isinstance(found, Serving):
        names, framework = [name for name in ENGINES if found.framework.partition("@")[0] == name], NO_FRAMEWORK
    else:
        return None
    try:
        return next(((name, launch(name, found.model, found.system, found.plan, framework)) for name in names), None)
    except InputError as error:
        return names[0], str(error)


def contrast(tab: str, before: State, after: State) -> Iterator[Message]:
    """Yield what differs between the answers to two states: the contrast of --against, or tables side by side."""
    changed = {
        key: (before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    }
    if not changed:
        raise InputError("the state is the pinned one; change a field to see both side by side")
    label = ", ".join(f"{key} {', '.join(now or ('not given',))}" for key, (_, now) in changed.items())
    yield {
        "kind": "command",
        "text": _against(tab, before, changed)
        or f"{show_command(question(tab, before))}\n{show_command(question(tab, after))}",
    }
    first, second = (ask(question(tab, state))[0] for state in (before, after))
    try:
        both = answers.report(Contrast({"pinned": first.answer, label: second.answer}))
        yield {"kind": "lead", "html": lead(both)}
        yield {"kind": "answer", "html": fragment(both, "both-")}
    except InputError:  # no one time with its parts
        yield {
            "kind": "lead",
            "html": f'<p class="lead">{escape(f"Pinned, and with {label}: the tables of both.")}</p>',
        }
        yield {"kind": "answer", "html": fragment(_SideBySide(first, second), "both-")}


def _against(tab: str, before: State, changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the command that asks with --against, "" where that option cannot say what changed."""
    params = find_command(TABS[tab].command).params
    if "against" not in [one.name for one in params]:
        return ""
    said: list[str] = []
    for key, (was, now) in changed.items():
        if key == "set" and now and set(was or ()) <= set(now):
            said += [one for one in now if one not in (was or ())]
        elif now and isinstance(params_of(TABS[tab].command).get(key), click.Option) and key != "set":
            said.append(f"{key}={now[0]}")
        else:
            return ""
    return show_command(question(tab, before) + [word for one in said for word in ("--against", one)])


class _SideBySide(Report[Any]):
    """The tables that two reports share, with each number before, after and as a ratio."""

    def __init__(self, before: Report[Any], after: Report[Any]) -> None:
        super().__init__(after.answer)
        self.before, self.after = before, after

    def sentences(self) -> list[str]:
        """Return nothing: each answer has its own conclusions."""
        return []

    def tables(self) -> list[Table]:
        """Return each table that both reports have, by its keys."""
        before = {tuple(one.keys): one for one in self.before.tables()}
        return [_merged(before[tuple(one.keys)], one) for one in self.after.tables() if tuple(one.keys) in before]


def _merged(before: Table, after: Table) -> Table:
    """Return the rows of two tables that have the same words, each number before, after and as a ratio."""
    numbers = [at for at, column in enumerate(after.columns) if column.is_number]
    named = [at for at, column in enumerate(after.columns) if not column.is_number][:1]
    was = {tuple(row[at] for at in named): row for row in before.rows}
    columns: list[Column] = [after.columns[at] for at in named]
    for at in numbers:
        one = after.columns[at]
        columns += [
            replace(one, key=f"{one.key}_before", head=f"{one.head or one.key}, pinned"),
            replace(one, key=f"{one.key}_after", head=f"{one.head or one.key}, now"),
            number(f"{one.key}_ratio", "now / pinned", "", ".2f"),
        ]
    rows = []
    for row in after.rows:
        old = was.get(tuple(row[at] for at in named))
        if old is not None:
            rows.append(
                [
                    *(row[at] for at in named),
                    *(cell for at in numbers for cell in (old[at], row[at], _ratio(old[at], row[at]))),
                ]
            )
    return Table(columns, rows, after.title)


def _ratio(before: Any, after: Any) -> float | None:
    first, second = plain(before), plain(after)
    if isinstance(first, int | float) and isinstance(second, int | float) and first:
        return second / first
    return None
