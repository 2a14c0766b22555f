"""The commands that a launch script runs, with its variables, arrays, functions, branches and loops followed.

Nothing is run. A variable of the environment that nobody states, and what a command prints, stay as they stand in the
script, so that an error can name them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise

from weft.core.errors import ConfigError, InputError
from weft.plan.documents import read_beside
from weft.plan.shell import (
    ASSIGNMENT,
    DEEPEST,
    Array,
    Body,
    Branches,
    Function,
    Group,
    Joined,
    Loop,
    Node,
    Simple,
    parse,
)

Arguments = Mapping[str, list[str]]
"""Values of each argument by its name, without dashes and with "-" between its words; empty for a flag."""

_LARGEST = 1 << 21
"""Most bytes to which the words of a script may expand, with those that a word takes by itself."""
_WORD = 32
_COMMANDS = 10_000
"""Most commands that a script may run."""
_LARGEST_NUMBER = 1 << 63
_UNKNOWN = re.compile(r"\$\{?[!#]?(\w+)|\$\(\([^$`A-Za-z_]*\$?\{?([A-Za-z_]\w*)|\$\(|`")
_VARIABLE = re.compile(r"(?<![$\w{])(?<!\$\()[A-Za-z_]\w*")
"""A variable without a sign in a sum."""
_COUNTS_GPUS = re.compile(
    r"\s*nvidia-smi\s+(-L|--list-gpus|--query-gpu=\S+\s+--format=\S*noheader\S*)\s*\|\s*wc\s+-l\s*"
    r"|\s*python3?\s+-c\s+.*torch\.cuda\.device_count\(\).*", re.DOTALL
)  # fmt: skip
_FLAG = re.compile(r"--[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_SHORT_FLAG = re.compile(r"-[A-Za-z-][\w.-]*(=.*)?", re.DOTALL)
_EXPANSION = re.compile(r"(#?)(\w+|[@*#?])(\[[^\]]*\])?(:?[-=+?]|\^\^|,,)?(.*)", re.DOTALL)
_PRINTS = frozenset(("echo", "printf", "cat", "tee", "logger", "cd", "mkdir", "sed", "grep", "ls", "rm", "cp"))
_REMOTE = frozenset(("ssh", "pdsh", "clush"))
_DECLARES = frozenset(("export", "local", "readonly", "declare", "typeset"))
_TRUE, _FALSE = True, False


@dataclass(frozen=True)
class Command:
    """A command that a script runs: its words, those that set variables of its environment, and its line."""

    words: tuple[str, ...]
    line: int
    assigned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Script:
    """What a script runs: its `commands`, and the lines whose branches all count as their conditions are not known.

    `exits` is the line in which the script ends before its last command, 0 if it does not, and `exits_by` the variables
    of the conditions around it. `arrays` are those that it sets, each as a command, `variables` the values of others
    at its end, and `missing` the scripts that it sources and that are not beside it.
    """

    commands: tuple[Command, ...]
    open_lines: tuple[int, ...] = ()
    exits: int = 0
    exits_by: tuple[str, ...] = ()
    arrays: tuple[Command, ...] = ()
    missing: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def read_script(
    text: str, file: str = "", arguments: Sequence[str] = (), defined: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None, gpus_per_node: int | None = None,
) -> Script:  # fmt: skip
    """Return the commands of a script that is started with positional `arguments`.

    Variables in `defined` have these values whatever the script sets, but for what it computes from them themselves
    (`N=$((N * 2))`); the `environment`'s have theirs until it sets them.
    `gpus_per_node` are what a script counts that asks the driver for its GPUs.
    Raises ConfigError, with the line, for a script that is not closed, grows without end or nests too deep, and
    InputError for a defined variable that the script does not have.
    """
    shell = _Shell(file, tuple(arguments), dict(defined or {}), dict(environment or {}), gpus_per_node)
    body, exits = parse(text.replace("\r\n", "\n"), file), 0
    exits_by: tuple[str, ...] = ()
    try:
        shell.run(body)
        shell.run_uncalled()
    except _Leaves as left:
        exits, exits_by = left.line, tuple(dict.fromkeys(left.asked))
    exits_by = tuple(name for name in exits_by if name not in shell.scalars) or exits_by
    for name in shell.defined:
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", "\n".join((text, *shell.sourced_texts))):
            raise InputError(f"the script has no variable {name}; define one that it has, or leave it out")
    if arguments and not shell.positional:
        raise InputError(
            f"the script takes no arguments, and it was given {' '.join(arguments)[:60]}; leave them out, or state its "
            "variables by --define NAME=VALUE"
        )
    arrays = tuple(Command(tuple(words), 0) for words in shell.arrays.values())
    variables = {**shell.scalars, **shell.defined}
    lines, missing = tuple(sorted(shell.open)), tuple(shell.missing)
    return Script(tuple(shell.commands), lines, exits, exits_by, arrays, missing, variables)


def is_unknown(word: str) -> bool:
    """Return whether a word holds what a script does not say: a variable of the environment, or a command's output."""
    return _UNKNOWN.search(word) is not None


def unknown_name(word: str) -> str:
    """Return the variable that a word needs; "" if it needs a command's output."""
    found = _UNKNOWN.search(word)
    return (found[1] or found[2] or "") if found else ""


def flags(words: Iterable[str]) -> Arguments:
    """Return the arguments among the words of a command; of one that is given twice the last values count.

    Words with one dash are arguments without values here: those of a launcher, which are not a model's.
    """
    found: dict[str, list[str]] = {}
    name, program = "", False
    for word in words:
        if word.endswith(".py") and not program:
            name, program = "", True
        elif _FLAG.fullmatch(word):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            found[name] = [value] if equals else []
        elif _SHORT_FLAG.fullmatch(word):
            name = ""
        elif name:
            found[name].append(word)
    return found


class _Leaves(Exception):
    """A command that leaves a loop, a function or the script."""

    def __init__(self, word: str, line: int) -> None:
        self.word, self.line = word, line
        self.asked: tuple[str, ...] = ()


@dataclass
class _Shell:
    """A shell that follows commands; `unsure` counts the branches around it whose conditions are not known.

    `asked` are the variables of the condition at hand.
    """

    file: str
    positional_values: tuple[str, ...]
    defined: dict[str, str]
    scalars: dict[str, str]
    gpus_per_node: int | None = None
    arrays: dict[str, list[str]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    positional: bool = False
    outer: bool = True
    bytes: int = 0
    ran: int = 0
    depth: int = 0
    line: int = 0
    blank: bool = False
    assumed: bool = False
    unsure: int = 0
    decisions: int = 0
    asked: dict[str, None] = field(default_factory=dict)
    sourced: set[str] = field(default_factory=set)
    sourced_texts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    # -- commands

    def run(self, body: Body) -> bool | None:
        """Follow commands; return whether the last one succeeded, None if that is not known."""
        status: bool | None = _TRUE
        for node in body:
            status = self.follow(node)
        return status

    def run_uncalled(self) -> None:
        """Follow the functions that no command calls by name, such as those that are exported."""
        for name in [name for name in self.functions if name not in self.called]:
            self.call(self.functions[name], ())

    def follow(self, node: Node) -> bool | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"commands call each other more than {DEEPEST} deep")
        try:
            if isinstance(node, Simple):
                return self.simple(node)
            if isinstance(node, Joined):
                return self.joined(node)
            if isinstance(node, Group):
                return self.run(node.body)
            if isinstance(node, Function):
                self.functions[node.name] = node
                return _TRUE
            return self.loop(node) if isinstance(node, Loop) else self.branch(node)
        finally:
            self.depth -= 1

    def joined(self, node: Joined) -> bool | None:
        status: bool | None = _TRUE
        self.asked, before = {}, self.asked
        for sign, part in node.parts:
            if (sign == "&&" and status is _FALSE) or (sign == "||" and status is _TRUE):
                continue
            if sign and status is None:
                self.maybe((part,), self.line)
            else:
                status = self.under((*self.asked,), (part,)) if sign else self.follow(part)
        self.asked = {**before, **self.asked}
        return status

    def under(self, asked: tuple[str, ...], body: Body) -> bool | None:
        """Follow commands under a condition that holds; what leaves them carries its variables."""
        try:
            return self.run(body)
        except _Leaves as left:
            left.asked = (*asked, *left.asked)
            raise

    def branch(self, node: Branches) -> bool | None:
        self.asked = {}
        for condition, body in node.bodies:
            known = self.holds(condition)
            if known is None:
                self.maybe(body, node.line)
            elif known:
                return self.under((*self.asked,), body)
        return _TRUE

    def maybe(self, body: Body, line: int) -> None:
        """Follow commands under a condition that is not known; note the line if they decide anything."""
        before = self.decisions
        self.unsure += 1
        try:
            self.run(body)
        finally:
            self.unsure -= 1
        if self.decisions > before:
            self.open.add(line)

    def holds(self, condition: Body | tuple[str, tuple[str, ...]] | None) -> bool | None:
        """Return whether a condition of `if` or a pattern of `case` holds."""
        if condition is None:
            return _TRUE
        if condition and isinstance(condition[0], str):
            subject = " ".join(self.words(condition[0], blank=True))
            patterns = [" ".join(self.words(each, blank=True)) for each in condition[1]]
            return None if is_unknown(subject) else any(fnmatchcase(subject, pattern) for pattern in patterns)
        self.assumed = False
        status = self.run(condition)
        return None if self.assumed else status

    def loop(self, node: Loop) -> bool | None:
        if node.name.startswith("(("):
            self.maybe(node.body, node.line)
        elif node.condition is not None:
            self.repeat(node, node.condition)
        else:
            words = ('"$@"',) if node.words is None else node.words
            values = [each for word in words for each in self.words(word)]
            if any(map(is_unknown, values)):
                self.open.add(node.line)
            for value in values:
                self.assign(node.name, value)
                if self.leaves(node.body):
                    break
        return _TRUE

    def repeat(self, node: Loop, condition: Body) -> None:
        """Follow `while` and `until`; a loop without an end, and one of unknown length, is followed once."""
        known = self.holds(condition)
        endless = condition and isinstance(condition[0], Simple) and condition[0].words[0] in ("true", ":", "false")
        while known is not None and known is not node.until:
            if self.leaves(node.body) or endless:
                return
            known = self.holds(condition)
        if known is None:
            self.maybe(node.body, node.line)

    def leaves(self, body: Body) -> bool:
        """Follow the body of a loop; return whether it left the loop."""
        try:
            self.run(body)
        except _Leaves as left:
            if left.word not in ("break", "continue"):
                raise
            return left.word == "break"
        return False

    def simple(self, node: Simple) -> bool | None:
        self.line = node.line
        self.ran += 1
        if self.ran > _COMMANDS:
            raise self.wrong(f"the script runs more than {_COMMANDS:,} commands")
        assigned: list[str] = []
        rest = list(node.words)
        while rest and (set_ := self.assignment(rest[0])) is not None:
            assigned.append(set_)
            rest.pop(0)
        test = bool(rest) and rest[0] in ("[", "[[", "test")
        if rest and rest[0] in _DECLARES:
            for each in rest[1:]:
                self.assignment(each)
            return _TRUE
        words = [each for word in rest if isinstance(word, str) for each in self.words(word, blank=test, whole=test)]
        if words and words[0] == "!":
            status = self.command(words[1:], node.line, assigned)
            return None if status is None else not status
        return self.command(words, node.line, assigned)

    def command(self, words: list[str], line: int, assigned: Sequence[str]) -> bool | None:
        name = words[0] if words else ""
        self.assumed = False
        if name in ("[", "[[", "test"):
            for at in [at for at, word in enumerate(words[:-1]) if word == "-v"]:
                words[at : at + 2] = ["-n", "" if self.value(words[at + 1]) is None else "set"]
            return run_test(words[1 : -1 if name != "test" else None])
        if name.startswith("((") and name.endswith("))"):
            found = evaluate_sum(name[2:-2], self.known_value)
            return None if found is None else found != 0
        if name in ("true", ":", "false"):
            return name != "false"
        if name == "shift":
            count = int(words[1]) if len(words) > 1 and words[1].isdecimal() and len(words[1]) < 5 else 1
            self.positional_values = self.positional_values[count:]
        elif name == "set" and "--" in words:
            self.positional_values = tuple(words[words.index("--") + 1 :])
        elif name == "eval":
            return self.run_nested(" ".join(words[1:]))
        elif name in ("source", ".") and len(words) > 1:
            self.source(words[1])
        elif name in self.functions:
            return self.call(self.functions[name], words[1:])
        elif name in ("exit", "return", "break", "continue"):
            if not self.unsure:
                raise _Leaves(name, line)
        else:
            self.assumed = bool(words)
            if name not in _PRINTS:
                self.decisions += any(word.startswith("--") for word in words)
                self.commands.append(Command(tuple(words), line, tuple(assigned)))
                for before, word in pairwise(words):
                    if " " in word and (name in _REMOTE or re.fullmatch(r"-\w*c", before)):  # handed to a shell
                        self.run_nested(word)
        return _TRUE

    def source(self, named: str) -> None:
        """Follow a script that this one sources, looked for beside it behind what is not known of its path."""
        known = re.sub(r"^.*[)}`$]/", "", named) if is_unknown(named) else named
        text = None if is_unknown(known) or known in self.sourced else read_beside(known, self.file)
        self.sourced.add(known)
        if text is None:
            self.missing.append(known)
        else:
            self.sourced_texts.append(text)
            self.run_nested(text.replace("\r\n", "\n"))

    def run_nested(self, text: str) -> bool | None:
        """Follow a text as commands of their own."""
        line = self.line
        status = self.run(parse(text, self.file))
        self.line = line
        return status

    def call(self, function: Function, values: Sequence[str]) -> bool | None:
        self.called.add(function.name)
        before = self.positional_values, self.outer
        self.positional_values, self.outer = tuple(values), False
        try:
            return self.run(function.body)
        except _Leaves as left:
            if left.word != "return":
                raise
            return _TRUE
        finally:
            self.positional_values, self.outer = before

    def assignment(self, word: str | Array) -> str | None:
        """Set the variable that a word assigns, and return the word with its value; None for another word."""
        if isinstance(word, Array):
            values = [each for one in word.words for each in self.words(one)]
            self.decisions += 1
            if word.name not in self.defined:
                self.arrays[word.name] = [*(self.arrays.get(word.name, []) if word.more else []), *values]
            return f"{word.name}={' '.join(values)}"
        found = ASSIGNMENT.fullmatch(word)
        if found is None:
            return None
        value = "".join(self.words(found[4], whole=True))
        if found[2]:
            self.assign_element(found[1], evaluate_sum(found[2][1:-1], self.known_value), value)
            return f"{found[1]}{found[2]}={value}"
        more = self.value(found[1]) or "" if found[3] else ""
        if found[1] in self.defined and not self.unsure and not is_unknown(more + value) and _names(found[4], found[1]):
            self.defined[found[1]] = more + value  # the script's own sum of what the user states
        self.assign(found[1], more + value)
        return f"{found[1]}={value}"

    def assign(self, name: str, value: str) -> None:
        self.arrays.pop(name, None)
        self.scalars[name] = value
        self.decisions += 1

    def assign_element(self, name: str, place: int | None, value: str) -> None:
        values = self.arrays.setdefault(name, [])
        if place is None or not 0 <= place < _COMMANDS:
            raise self.wrong(f"an element of the array {name} is not known")
        values.extend([""] * (place + 1 - len(values)))
        values[place] = value

    # -- expansion

    def words(self, raw: str, blank: bool = False, whole: bool = False) -> list[str]:
        """Return the words that a raw word becomes; unset variables are nothing if `blank`; `whole`: is not split."""
        before, self.blank = self.blank, blank
        found = _Words(whole)
        self.expand(raw, found, 0)
        self.blank = before
        return found.finish()

    def expand(self, raw: str, out: _Words, depth: int, quoted: bool = False) -> None:
        if depth > DEEPEST:
            raise self.wrong(f"expansions are nested more than {DEEPEST} deep")
        self.count(raw)
        at = 0
        while at < len(raw):
            char = raw[at]
            if char == "\\" and at + 1 < len(raw):
                out.add(raw[at + 1] if not quoted or raw[at + 1] in '$`"\\' else raw[at : at + 2])
                at += 2
            elif char == "'" and not quoted:
                end = raw.find("'", at + 1)
                out.add(raw[at + 1 : end])
                at = end + 1
            elif char == '"':
                quoted = not quoted
                out.add("")
                at += 1
            elif char == "$":
                at = self.dollar(raw, at, out, depth, quoted)
            elif char == "`":
                end = raw.find("`", at + 1) + 1 or len(raw)
                out.add(self.output(raw[at + 1 : end - 1]) or raw[at:end])
                at = end
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "\\'\"$`":
                    end += 1
                out.add(raw[at:end])
                at = end

    def dollar(self, raw: str, at: int, out: _Words, depth: int, quoted: bool) -> int:
        """Expand what begins with a dollar sign; return the place behind it."""
        follows = raw[at + 1 : at + 2]
        if follows in ("{", "("):
            end = _closing_place(raw, at + 2, follows)
            inside = raw[at + 2 : end - 1]
            if follows == "{":
                self.parameter(inside, out, depth, quoted)
            elif inside.startswith("(") and inside.endswith(")"):
                text = self.words(inside[1:-1], self.blank, whole=True)
                found = evaluate_sum("".join(text), self.known_value)
                shown = self.open_sum("".join(text)) if found is None else str(found)
                self.put(shown, out, quoted, found is not None)
            else:
                first = inside.split(maxsplit=1)[:1] or [""]
                self.put(self.output(inside) or f"$({first[0]})", out, True)
            return end
        name = re.match(r"[A-Za-z_]\w*|\d|[@*#?]", raw[at + 1 :])
        if name is None:
            out.add("$")
            return at + 1
        self.parameter(name[0], out, depth, quoted)
        return at + 1 + len(name[0])

    def output(self, command: str) -> str:
        """Return what a command prints that counts the GPUs of a node; "" if that is not known."""
        return str(self.gpus_per_node or "") if _COUNTS_GPUS.fullmatch(command) else ""

    def parameter(self, inside: str, out: _Words, depth: int, quoted: bool) -> None:
        """Expand `${inside}`."""
        if pointer := re.fullmatch(r"!(\w+)((?![@*\[]).*)", inside, re.DOTALL):  # the variable that a variable names
            named = self.value(pointer[1]) or ""
            inside = f"{named}{pointer[2]}" if re.fullmatch(r"[A-Za-z_]\w*", named) else inside
        found = _EXPANSION.fullmatch(inside)
        if found is None:
            self.put(f"${{{inside}}}", out, True)
            return
        length, name, index, sign, word = found.groups()
        every = name in ("@", "*") or index in ("[@]", "[*]")
        values = self.several(name) if every else None
        if every and values is not None and not sign:
            if length:
                self.put(str(len(values)), out, quoted)
            elif quoted and "*" not in (name, (index or "")[1:2]):
                out.several(values)
                for each in values:
                    self.count(each)
            else:
                self.put(" ".join(values), out, quoted)
            return
        value = " ".join(values) if values is not None else self.indexed_value(name, index)
        set_ = value is not None and (value != "" or not (sign or "").startswith(":"))
        if length:
            self.put(f"${{{inside}}}" if value is None else str(len(value)), out, quoted)
        elif sign in ("^^", ",,") and value is not None and not word:
            self.put(value.upper() if sign == "^^" else value.lower(), out, quoted)
        elif sign is None or sign in ("^^", ",,"):
            nothing = value is None and not word and (self.blank or name.isdecimal())
            known = nothing or (value is not None and not word and sign is None)
            self.put(value or "" if known else f"${{{inside}}}", out, quoted or not known)
        elif sign[-1] == "+":
            if set_:
                self.expand(word, out, depth + 1, quoted)
        elif set_:
            self.put(value or "", out, quoted)
        elif sign[-1] == "?":
            self.put("" if self.blank else f"${{{name}}}", out, True)
        else:
            self.expand(word, out, depth + 1, quoted)
            if sign[-1] == "=":
                self.assign(name, "".join(self.words(word, whole=True)))

    def put(self, text: str, out: _Words, quoted: bool, known: bool = True) -> None:
        self.count(text)
        if quoted or not known:
            out.add(text)
        else:
            out.split(text)

    def open_sum(self, text: str) -> str:
        """Return a sum without a value, its known variables replaced, and those that need others by the others."""

        def replace_variable(found: re.Match[str]) -> str:
            value = self.value(found[0])
            return found[0] if not value else unknown_name(value) or found[0] if is_unknown(value) else value

        return f"$(({_VARIABLE.sub(replace_variable, text)}))"

    def known_value(self, name: str) -> str:
        """Return the value of a variable in a sum; KeyError if it is not known."""
        value = self.value(name)
        if value is None:
            raise KeyError(name)
        return value

    def value(self, name: str) -> str | None:
        """Return the value of a variable or a positional argument; None if nobody states it."""
        if name.isidentifier():
            self.asked[name] = None
        if name in self.defined:
            return self.defined[name]
        if name.isdecimal() and len(name) < 4:
            self.positional |= self.outer
            values = (self.file or "script", *self.positional_values)
            return values[int(name)] if int(name) < len(values) else None
        if name == "#":
            self.positional |= self.outer
            return str(len(self.positional_values))
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        return self.scalars.get(name)

    def indexed_value(self, name: str, index: str | None) -> str | None:
        if index is None or name in self.defined:
            return self.value(name)
        place = evaluate_sum(index[1:-1], self.known_value)
        values = self.arrays.get(name)
        return None if place is None or values is None or not -len(values) <= place < len(values) else values[place]

    def several(self, name: str) -> Sequence[str] | None:
        """Return the values of an array, or of all positional arguments; None for another variable."""
        if name in ("@", "*"):
            self.positional |= self.outer
            return self.positional_values
        return None if name in self.defined else self.arrays.get(name)

    def count(self, text: str) -> None:
        self.bytes += len(text) + _WORD
        if self.bytes > _LARGEST:
            raise self.wrong(f"its variables grow to more than {_LARGEST >> 20} MiB of text")

    def wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{what}; give a script that does less", self.file, f"line {self.line}")


class _Words:
    """The words that come out of an expansion."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.found: list[str] = []
        self.open: list[str] | None = None

    def add(self, text: str) -> None:
        """Add text to the word at hand."""
        if self.open is None:
            self.open = []
        self.open.append(text)

    def split(self, text: str) -> None:
        """Add text that blanks split into words."""
        if self.whole or not text or (text.split() == [text]):
            if text:
                self.add(text)
            return
        parts = text.split()
        if text[0].isspace():
            self.end()
        for place, part in enumerate(parts):
            if place:
                self.end()
            self.add(part)
        if text[-1].isspace():
            self.end()

    def several(self, values: Sequence[str]) -> None:
        """Add values that are words of their own."""
        for place, value in enumerate(values):
            if place:
                self.end()
            self.add(value)

    def end(self) -> None:
        if self.open is not None:
            self.found.append("".join(self.open))
        self.open = None

    def finish(self) -> list[str]:
        self.end()
        return self.found


def _closing_place(raw: str, at: int, opening: str) -> int:
    """Return the place behind the bracket that closes an expansion, which the lexer has found to be closed."""
    closing, level = {"{": "}", "(": ")"}[opening], 1
    while at < len(raw):
        char = raw[at]
        if char == "\\":
            at += 1
        elif char == "'" and opening == "(":
            at = max(raw.find("'", at + 1), at)
        level += (char == opening) - (char == closing)
        at += 1
        if not level:
            break
    return at


def run_test(words: Sequence[str]) -> bool | None:
    """Return whether the condition of a test holds; None if that is not known."""
    for sign, short in (("||", _TRUE), ("-o", _TRUE), ("&&", _FALSE), ("-a", _FALSE)):
        if sign in words:
            at = list(words).index(sign)
            parts = [run_test(words[:at]), run_test(words[at + 1 :])]
            return short if short in parts else None if None in parts else not short
    if words and words[0] == "!":
        found = run_test(words[1:])
        return None if found is None else not found
    if any(map(is_unknown, words)):
        return None
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 3:
        left, sign, right = words
        if sign in ("=", "=="):
            return fnmatchcase(left, right)
        if sign == "!=":
            return not fnmatchcase(left, right)
        compare = _COMPARES.get(sign)
        if compare and _whole(left) and _whole(right):
            return compare(int(left), int(right))
    return None


_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip


def _names(raw: str, name: str) -> bool:
    """Return whether a raw word expands a variable."""
    return "$" in raw and re.search(rf"(?<!\w){name}(?!\w)", raw) is not None


def _whole(text: str) -> bool:
    return re.fullmatch(r"\s*-?[0-9]{1,15}\s*", text, re.ASCII) is not None


def _quotient(a: int, b: int) -> int:
    """Return the quotient as a shell has it, which cuts towards zero."""
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b), ast.Gt: operator.gt, ast.Lt: operator.lt, ast.GtE: operator.ge,
    ast.LtE: operator.le, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def evaluate_sum(text: str, known: Callable[[str], str]) -> int | None:
    """Return the value of whole numbers with + - * / %, comparisons and one choice (a ? b : c); None for all else."""

    def value(node: ast.expr) -> int:
        found = 0
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found = node.value
        elif isinstance(node, ast.Name):
            found = int(known(node.id) or 0)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            found = -value(node.operand) if isinstance(node.op, ast.USub) else value(node.operand)
        elif isinstance(node, ast.BinOp):
            found = _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            found = int(_OPERATIONS[type(node.ops[0])](value(node.left), value(node.comparators[0])))
        else:
            raise ValueError(text)
        if abs(found) >= _LARGEST_NUMBER:
            raise ValueError(text)
        return found

    if len(text) > 1000:
        return None
    if choice := re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text):
        holds = evaluate_sum(choice[1], known)
        return None if holds is None else evaluate_sum(choice[2] if holds else choice[3], known)
    try:
        return value(ast.parse(text.strip() or "0", mode="eval").body)
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None
