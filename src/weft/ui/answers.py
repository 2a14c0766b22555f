"""Answers of commands as parts of a page: the function that a command calls, and the report that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import click

from weft import hardware
from weft.cli.output import Outputs
from weft.core.answer import Answer
from weft.core.contrast import Contrast
from weft.core.errors import InputError
from weft.core.report import Report, Table
from weft.core.report.table import number, plain
from weft.plan.plans import Plans
from weft.plan.serving_plans import ServingPlans
from weft.ui.plans import state_of
from weft.ui.state import FILE, TABS, State, arguments, find_command, params_of, show_command, write_query
from weft.view import answers
from weft.view.page import conclusions, fragment

Message = dict[str, Any]
"""What a page is told: its `kind`, and what that kind has."""


class _Kept(Outputs):
    """Takes the place of a command's outputs: keeps what the command shows, and prints nothing."""

    shown: Any = None

    def show(self, shown: Any, *_: Any, **__: Any) -> None:
        self.shown = shown


def ask(words: Sequence[str]) -> tuple[Report[Any], str]:
    """Return the report of a command line, as the command prints it, and the line that states another clock.

    Raises what the command raises.
    """
    kept, (command, at) = _Kept(), find_command(tuple(words))
    with command.make_context(" ".join(("weft", *words[:at])), list(words[at:]), obj=kept) as context:
        command.invoke(context)
    return (answers.report(kept.shown) if isinstance(kept.shown, Answer) else kept.shown), kept.state


def question(tab: str, state: State, at: int | None = None) -> list[str]:
    """Return the command line of a tab's state, or that of its further question number `at`."""
    of = TABS[tab]
    if at is None:
        return arguments(of.command, state)
    more = of.asks[at]
    left = {key: values for key, values in state.items() if key not in more.without}
    return arguments(more.command or of.command, left, more.added)


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
    found = report.answer
    if isinstance(found, Plans | ServingPlans) and found.best is not None:
        plan, framework = found.best.plan, found.best.setting.framework if isinstance(found, Plans) else ""
        kept = {key: values for key, values in state.items() if key.replace("-", "_") not in {*vars(plan), FILE}}
        yield {"kind": "open", "query": write_query({**kept, **state_of(tab, found.model, plan, framework)})}
    if at is None and (launch := launch_text(found)):
        yield {"kind": "launch", "text": launch[1], "title": launch[0]}


def values(state: State) -> Iterator[Message]:
    """Yield the values of the machine of a state by path, as --set takes them."""
    machine = hardware.system(next((state[key][0] for key in ("system", "gpu") if key in state), ""))
    yield {"kind": "values", "values": [f"{path}={one.text}" for path, one in machine.provenance.items()]}


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
    keys = dict.fromkeys((*before, *after))
    changed = {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
    if not changed:
        raise InputError("the state is the pinned one; change a field to see both side by side")
    label = ", ".join(f"{key} {', '.join(now or ('not given',))}" for key, (_, now) in changed.items())
    commands = [show_command(question(tab, state)) for state in (before, after)]
    yield {"kind": "command", "text": _against(tab, before, changed) or "\n".join(commands)}
    first, second = (ask(question(tab, state))[0] for state in (before, after))
    try:
        both = answers.report(Contrast({"pinned": first.answer, label: second.answer}))
        said = lead(both)
    except InputError:  # no one time with its parts
        both, said = _SideBySide(first, second), f"<p>{escape(f'Pinned, and with {label}: the tables of both.')}</p>"
    yield {"kind": "lead", "html": said}
    yield {"kind": "answer", "html": fragment(both, "both-")}


def _against(tab: str, before: State, changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the command that asks with --against, "" where that option cannot say what changed."""
    if "against" not in [one.name for one in find_command(TABS[tab].command)[0].params]:
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
        return []

    def tables(self) -> list[Table]:
        before = {tuple(one.keys): one for one in self.before.tables()}
        return [_merged(before[tuple(one.keys)], one) for one in self.after.tables() if tuple(one.keys) in before]


def _merged(before: Table, after: Table) -> Table:
    """Return the rows that two tables share by their first words, each number before, after and as a ratio."""
    numbers = [at for at, column in enumerate(after.columns) if column.is_number]
    name = next(at for at, column in enumerate(after.columns) if not column.is_number)
    columns = [after.columns[name]]
    for one in (after.columns[at] for at in numbers):
        head = one.head or one.key
        columns += [replace(one, key=f"{one.key}_pinned", head=f"{head}, pinned"), replace(one, head=f"{head}, now")]
        columns.append(number(f"{one.key}_ratio", "now / pinned", "", ".2f"))
    was = {row[name]: row for row in before.rows}
    rows = [
        [row[name], *(each for at in numbers for each in _three(was[row[name]][at], row[at]))]
        for row in after.rows
        if row[name] in was
    ]
    return Table(columns, rows, after.title)


def _three(before: Any, after: Any) -> tuple[Any, Any, float | None]:
    first, second = plain(before), plain(after)
    has_ratio = isinstance(first, int | float) and isinstance(second, int | float) and first
    return before, after, second / first if has_ratio else None
