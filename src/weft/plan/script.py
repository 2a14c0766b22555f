"""Arguments of a launch script: what a shell would pass, with its variables, arrays and continued lines."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

Arguments = Mapping[str, list[str]]
"""Values of each argument by its name, without dashes and with "-" between its words; empty for a flag."""

OFF = "false"
"""The value of an argument that an override turns off."""
_ASSIGNED = re.compile(r"(?:export\s+|local\s+|readonly\s+|declare\s+(?:-\w+\s+)*)?(\w+)(\+?)=(.*)", re.DOTALL)
_WHOLE_ARRAY = re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?')
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)")
_SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CONDITION = re.compile(r"\s*(if|elif|case|while|for)\b")


def arguments(text: str) -> Arguments:
    """The arguments of all commands of a script; of one that is given twice the last values count, as for argparse."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in _words(text):
        if _FLAG.fullmatch(word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return found


def overrides(text: str) -> Arguments:
    """The arguments that lines like `model.tensor_model_parallel_size=4` set, by the last part of their names.

    A flag that a line turns off has the value "false"; so has a value that it leaves out ("null").
    """
    found: dict[str, list[str]] = {}
    for word in _words(text, assigns=False):
        name, equals, value = word.lstrip("+").partition("=")
        if equals:
            off, on = value.lower() in ("false", "none", "null"), value.lower() == "true"
            found[name.rpartition(".")[2].replace("_", "-")] = [OFF] if off else [] if on else [value]
    return found


def has_conditions(text: str) -> bool:
    """Whether a script has branches or loops, which are not followed: arguments in all of them count."""
    return any(_CONDITION.match(line) for line in text.splitlines())


def _words(text: str, assigns: bool = True) -> Iterator[str]:
    """The words of all commands; assignments set variables instead."""
    scalars: dict[str, str] = {}
    arrays: dict[str, list[str]] = {}
    for line in _commands(re.sub(r";\s", "\n", re.sub(r"\\\r?\n", " ", text))):
        assigned = _ASSIGNED.fullmatch(line.strip()) if assigns else None
        if assigned is None:
            yield from _split(_expanded(line, scalars, arrays))
            continue
        name, more, value = assigned.groups()
        if value.startswith("("):
            words = _split(_expanded(value.strip()[1:-1], scalars, arrays))
            arrays[name] = [*(arrays.get(name, []) if more else []), *words]
            continue
        words = _split(_expanded(value, scalars, arrays))
        scalars[name] = (scalars.get(name, "") if more else "") + (words[0] if words else "")
        yield from words[1:]  # a command behind the variables of its environment


def _commands(text: str) -> Iterator[str]:
    """Lines, those with open quotes or brackets of an array joined to the next ones."""
    held = ""
    for line in text.splitlines():
        held = f"{held}\n{line}" if held else line
        assigned = _ASSIGNED.fullmatch(held.strip())
        is_array = assigned is not None and assigned[3].startswith("(")
        bare = _bare(held)
        if _is_open(held) or (is_array and bare.count("(") > bare.count(")")):
            continue
        yield held
        held = ""
    if held:
        yield held


def _bare(line: str) -> str:
    """A text without its comments, as far as they stand alone or behind a space."""
    return "\n".join(re.sub(r"(^|\s)#.*$", "", each) for each in line.split("\n"))


def _is_open(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that nothing closes
        return _bare(line).split()


def _expanded(line: str, scalars: Mapping[str, str], arrays: Mapping[str, list[str]]) -> str:
    """A line with its variables, arrays and sums replaced; what the script does not set stays as it is."""

    def array(found: re.Match[str]) -> str:
        return shlex.join(arrays[found[1]]) if found[1] in arrays else found[0]

    def scalar(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in arrays:
            return arrays[name][0] if arrays[name] else ""
        default = found[2] if found[2] is not None else found[0]
        return scalars.get(name, default)

    line = _VARIABLE.sub(scalar, _WHOLE_ARRAY.sub(array, line))
    return _SUM.sub(lambda found: _summed(found[1], scalars) or found[0], line)


def _summed(text: str, scalars: Mapping[str, str]) -> str:
    """The value of whole numbers with + - * / % between; "" for anything else."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return int(scalars[node.id])
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(text)

    try:
        return str(value(ast.parse(text.strip(), mode="eval").body))
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, RecursionError):
        return ""
