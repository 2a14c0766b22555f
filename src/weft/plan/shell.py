"""Shell scripts as the commands that they run: words, quotes, here-documents and compound commands, in one pass.

The grammar is the part of bash that launch scripts use. Nothing is run; `weft.plan.script` follows the commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.core.errors import ConfigError

DEEPEST = 50
"""Most levels of nested expansions and compound commands."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[\w+\])?(\+?)=(.*)", re.DOTALL)
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()]")
_REDIRECTION = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||[<>]")
_SUM = 1000
"""Longest arithmetic command, `((...))` [characters]."""
_ENDS = frozenset(" \t\n;&|()<>")


@dataclass(frozen=True)
class Array:
    """The assignment of an array: `name=(words)`, or `name+=(words)` with `more`."""

    name: str
    more: bool
    words: tuple[str, ...]


@dataclass(frozen=True)
class Simple:
    """A command of raw words, quotes and variables as they stand, in line `line`."""

    words: tuple[str | Array, ...]
    line: int


@dataclass(frozen=True)
class Branches:
    """`if` and `case`: bodies with their conditions, the last one without for `else`.

    A condition is the commands of `if`, or the subject and the patterns of `case`.
    """

    line: int
    bodies: tuple[tuple[Body | tuple[str, tuple[str, ...]] | None, Body], ...]


@dataclass(frozen=True)
class Loop:
    """`for NAME in WORDS`, or `while` a condition holds (with `until`: does not)."""

    line: int
    body: Body
    name: str = ""
    words: tuple[str, ...] | None = None
    condition: Body | None = None
    until: bool = False


@dataclass(frozen=True)
class Function:
    """A function of the script."""

    name: str
    body: Body


@dataclass(frozen=True)
class Group:
    """Commands in braces or parentheses."""

    body: Body


@dataclass(frozen=True)
class Joined:
    """Commands with `&&` and `||` between them: each one with the operator before it."""

    parts: tuple[tuple[str, Node], ...]


Node = Simple | Branches | Loop | Function | Group | Joined
Body = tuple[Node, ...]


@dataclass(frozen=True)
class _Token:
    text: str
    line: int
    kind: str = "word"
    array: Array | None = None


def parse(text: str, file: str = "") -> Body:
    """Return the commands of a script.

    Raises ConfigError, with the line, for quotes, arrays, here-documents and compound commands that nothing closes,
    and for deep nesting.
    """
    return _Parser(_Lexer(text, file).tokens(), file).script()


@dataclass
class _Lexer:
    text: str
    file: str
    at: int = 0
    line: int = 1
    documents: list[tuple[str, bool, int]] = field(default_factory=list)

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        while (token := self.token()) is not None:
            if token.kind == "operator" and token.text == "(" and _opens_array(found, self.at):
                found[-1] = self.array(found[-1])
            else:
                found.append(token)
        if self.documents:
            raise self.wrong(f"the here-document '{self.documents[0][0]}' is never closed", self.documents[0][2])
        return found

    def token(self) -> _Token | None:
        """Return the next word or operator; None at the end. Redirections and comments are passed over."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):  # which bash removes before it reads words and comments
                self.at, self.line = self.at + 2, self.line + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "\n":
                self.at, self.line = self.at + 1, self.line + 1
                self.pass_documents()
                return _Token("\n", self.line - 1, "operator")
            elif found := _REDIRECTION.match(self.text, self.at):
                self.redirect(found[0])
            elif found := _OPERATOR.match(self.text, self.at):
                if self.text.startswith("((", self.at) and (end := self.text.find("))", self.at, self.at + _SUM)) >= 0:
                    inside, line = self.text[self.at : end + 2], self.line  # an arithmetic command
                    self.at, self.line = end + 2, line + inside.count("\n")
                    return _Token(inside, line)
                self.at = found.end()
                return _Token(found[0], self.line, "operator")
            else:
                line, start = self.line, self.at
                self.pass_word()
                word = self.text[start : self.at]
                if word.isdigit() and self.at < len(self.text) and self.text[self.at] in "<>":
                    continue  # the stream of a redirection
                if word:
                    return _Token(word.replace("\\\n", ""), line)
        return None

    def array(self, head: _Token) -> _Token:
        """Return the words up to the bracket that closes an array."""
        words: list[str] = []
        while (token := self.token()) is not None:
            if token.kind == "word":
                words.append(token.text)
            elif token.text == ")":
                assigned = ASSIGNMENT.fullmatch(head.text)
                name, more = (assigned[1], bool(assigned[3])) if assigned else ("", False)
                return _Token(head.text, head.line, "word", Array(name, more, tuple(words)))
            elif token.text != "\n":
                raise self.wrong(f"'{token.text}' stands inside the array {head.text}(", token.line)
        raise self.wrong(f"the array {head.text}( is never closed", head.line)

    def redirect(self, operator: str) -> None:
        """Pass over a redirection and its target; of a here-document keep the word that ends it."""
        line, self.at = self.line, self.at + len(operator)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        start = self.at
        if self.text.startswith("(", start) and operator in "<>":  # a process substitution
            self.at = self.closed("(", ")", start + 1, 1)
        else:
            self.pass_word()
        if operator in ("<<", "<<-"):
            self.documents.append((re.sub(r"['\"\\]", "", self.text[start : self.at]), operator == "<<-", line))

    def pass_documents(self) -> None:
        """Pass over the here-documents that a line has begun: they are text."""
        for end, tabs, line in self.documents:
            while True:
                if self.at >= len(self.text):
                    raise self.wrong(f"the here-document '{end}' is never closed", line)
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                row = self.text[self.at : stop]
                self.at, self.line = stop + 1, self.line + 1
                if (row.lstrip("\t") if tabs else row) == end:
                    break
        self.documents = []

    def pass_word(self) -> None:
        """Go to the end of a word."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _ENDS:
                return
            self.pass_piece(0)

    def pass_piece(self, depth: int) -> None:
        """Pass over a character, a quoted text or an expansion."""
        char = self.text[self.at]
        if char == "\\":
            self.line += self.text.startswith("\n", self.at + 1)
            self.at += 2
        elif char == "'" or self.text.startswith("$'", self.at):
            self.pass_quoted(self.at + 1 + (char == "$"), char == "$")
        elif char == '"':
            self.pass_double(depth)
        elif char == "`":
            self.pass_until("`", "a `command`")
        elif char == "$" and self.text[self.at + 1 : self.at + 2] in ("{", "("):
            opening = self.text[self.at + 1]
            self.at = self.closed(opening, ")" if opening == "(" else "}", self.at + 2, depth + 1)
        else:
            self.line += char == "\n"
            self.at += 1

    def pass_quoted(self, start: int, escapes: bool) -> None:
        line, at = self.line, start
        while at < len(self.text) and self.text[at] != "'":
            self.line += self.text[at] == "\n"
            at += 2 if escapes and self.text[at] == "\\" else 1
        if at >= len(self.text):
            raise self.wrong("a quote (') is never closed", line)
        self.at = at + 1

    def pass_double(self, depth: int) -> None:
        line = self.line
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "'" or self.text.startswith("$'", self.at):
                self.at += 1  # no quote inside double ones
            else:
                self.pass_piece(depth + 1)
        raise self.wrong('a quote (") is never closed', line)

    def pass_until(self, end: str, what: str) -> None:
        line, self.at = self.line, self.at + 1
        while self.at < len(self.text):
            char = self.text[self.at]
            self.line += char == "\n"
            self.at += 2 if char == "\\" else 1
            if char == end:
                return
        raise self.wrong(f"{what} is never closed", line)

    def closed(self, opening: str, closing: str, at: int, depth: int) -> int:
        """Return the place behind the bracket that closes an expansion."""
        line, self.at, level = self.line, at, 1
        if depth > DEEPEST:
            raise ConfigError(f"expansions are nested over {DEEPEST} deep; nest fewer", self.file, f"line {line}")
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == closing:
                level -= 1
                self.at += 1
                if not level:
                    return self.at
            elif char == opening:
                level += 1
                self.at += 1
            else:
                self.pass_piece(depth)
        raise self.wrong(f"${opening} is never closed", line)

    def wrong(self, what: str, line: int) -> ConfigError:
        return ConfigError(f"{what}; close it, or leave the line out", self.file, f"line {line}")


def _opens_array(found: Sequence[_Token], at: int) -> bool:
    if not found or found[-1].kind != "word" or found[-1].array is not None:
        return False
    assigned = ASSIGNMENT.fullmatch(found[-1].text)
    return assigned is not None and not assigned[4]


_OPENING = {"if": "fi", "case": "esac", "for": "done", "select": "done", "while": "done", "until": "done", "{": "}"}


class _Parser:
    """Commands of a list of tokens, by recursive descent."""

    def __init__(self, tokens: Sequence[_Token], file: str) -> None:
        self.tokens, self.file = tokens, file
        self.at = self.depth = 0

    def script(self) -> Body:
        found: list[Node] = []
        while self.at < len(self.tokens):
            found.extend(self.body(()))
            self.at += 1  # a word or a bracket that closes nothing
        return tuple(found)

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def body(self, ends: tuple[str, ...]) -> Body:
        """Return the commands up to one of the words that end a list, which stays."""
        found: list[Node] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.kind == "operator" and token.text in ("\n", ";", "&", "|", "|&"):
                self.at += 1
            elif token.text in ends or (token.kind == "operator" and token.text != "("):
                break
            else:
                found.append(self.joined())
        return tuple(found)

    def joined(self) -> Node:
        parts: list[tuple[str, Node]] = [("", self.command())]
        while self.peek() in ("&&", "||") and self.tokens[self.at].kind == "operator":
            operator = self.peek()
            self.at += 1
            while self.peek() == "\n":
                self.at += 1
            if self.at < len(self.tokens):
                parts.append((operator, self.command()))
        return parts[0][1] if len(parts) == 1 else Joined(tuple(parts))

    def command(self) -> Node:
        token = self.tokens[self.at]
        self.depth += 1
        if self.depth > DEEPEST:
            raise ConfigError(f"commands are nested more than {DEEPEST} deep", self.file, f"line {token.line}")
        try:
            return self.compound(token) or self.simple(token)
        finally:
            self.depth -= 1

    def compound(self, token: _Token) -> Node | None:
        """Return the compound command that a token begins; None for a simple one."""
        read: dict[str, Callable[[], Node]] = {
            "if": self.conditions, "case": self.cases, "for": self.loop, "select": self.loop, "while": self.repeat,
            "until": self.repeat, "{": self.group,
        }  # fmt: skip
        if token.kind == "operator":
            self.at += 1
            return Group(self.closing(token, (")",)))
        if token.text in read and token.array is None:
            return read[token.text]()
        names = token.text == "function" and self.at + 1 < len(self.tokens)
        follows = [each.text for each in self.tokens[self.at + names + 1 : self.at + names + 3]]
        if names or follows == ["(", ")"]:
            name = self.tokens[self.at + names].text
            self.at += 1 + names + 2 * (follows == ["(", ")"])
            while self.peek() == "\n":
                self.at += 1
            if self.at < len(self.tokens):
                return Function(name, (self.command(),))
        return None

    def simple(self, token: _Token) -> Simple:
        words: list[str | Array] = []
        test = token.text == "[["
        while self.at < len(self.tokens):
            each = self.tokens[self.at]
            if each.kind == "operator" and not (test and each.text in ("&&", "||", "(", ")", "\n")):
                break
            self.at += 1
            words.append(each.array or each.text)
            if test and each.text == "]]":
                break
        return Simple(tuple(words), token.line)

    def closing(self, opened: _Token, ends: tuple[str, ...], last: str = "") -> Body:
        """Return the commands up to one of some words, and pass over the word if it is the `last` one."""
        found = self.body(ends)
        if self.peek() not in ends:
            last = last or _OPENING.get(opened.text, ")")
            raise ConfigError(
                f"'{opened.text}' has no '{last}'; close it, or leave the line out", self.file, f"line {opened.line}"
            )
        if not last:
            self.at += 1
        return found

    def group(self) -> Node:
        opened = self.tokens[self.at]
        self.at += 1
        return Group(self.closing(opened, ("}",)))

    def conditions(self) -> Node:
        opened = self.tokens[self.at]
        bodies: list[tuple[Body | None, Body]] = []
        while self.peek() in ("if", "elif"):
            self.at += 1
            condition = self.closing(opened, ("then",))
            bodies.append((condition, self.closing(opened, ("elif", "else", "fi"), "fi")))
        if self.peek() == "else":
            self.at += 1
            bodies.append((None, self.closing(opened, ("fi",), "fi")))
        self.at += 1
        return Branches(opened.line, tuple(bodies))

    def cases(self) -> Node:
        opened = self.tokens[self.at]
        subject = self.tokens[self.at + 1].text if self.at + 1 < len(self.tokens) else ""
        self.at += 2
        while self.peek() in ("in", "\n") and self.at < len(self.tokens):
            self.at += 1
        bodies = []
        while self.at < len(self.tokens) and self.peek() != "esac":
            patterns: list[str] = []
            while self.at < len(self.tokens) and self.peek() != ")":
                if self.tokens[self.at].kind == "word":
                    patterns.append(self.peek())
                self.at += 1
            self.at += 1
            body = self.body(("esac",))
            bodies.append(((subject, tuple(patterns)), body))
            while self.peek() in (";;", ";&", ";;&", "\n") and self.at < len(self.tokens):
                self.at += 1
        if self.at >= len(self.tokens):
            raise ConfigError("'case' has no 'esac'; close it", self.file, f"line {opened.line}")
        self.at += 1
        return Branches(opened.line, tuple(bodies))

    def loop(self) -> Node:
        opened = self.tokens[self.at]
        name = self.tokens[self.at + 1].text if self.at + 1 < len(self.tokens) else ""
        self.at += 2
        words: list[str] | None = None
        while self.at < len(self.tokens) and self.peek() != "do":
            each = self.tokens[self.at]
            if each.kind == "word" and each.text == "in" and words is None:
                words = []
            elif each.kind == "word" and words is not None:
                words.append(each.text)
            self.at += 1
        self.at += 1
        body = self.closing(opened, ("done",))
        return Loop(opened.line, body, name, None if words is None else tuple(words))

    def repeat(self) -> Node:
        opened = self.tokens[self.at]
        self.at += 1
        condition = self.closing(opened, ("do",))
        return Loop(opened.line, self.closing(opened, ("done",)), condition=condition, until=opened.text == "until")
