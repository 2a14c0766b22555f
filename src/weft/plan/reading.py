"""The arguments of a launch file, read by name and type; every one of them is accounted for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from weft.core.errors import ConfigError, show_value
from weft.core.files import packaged_toml
from weft.plan.script import Arguments, is_unknown, unknown_name

OFF = "false"
"""The value of an argument that a file turns off."""
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False,
          "none": False, "null": False}  # fmt: skip
_WHOLE = re.compile(r"[0-9]{1,15}(\.0)?", re.ASCII)


class Known(NamedTuple):
    """What is known of a launcher's arguments by their names, or beginnings of names.

    `reads` says what of a run an argument is, `without_effect` why others change nothing, `not_modelled` in which
    direction those change a step that Weft does not follow, unless they have one of their `neutral` values. `defaults`
    are what a launcher takes where nothing is said, `spelled` other names of arguments.
    """

    reads: Mapping[str, Any]
    without_effect: Mapping[str, str]
    not_modelled: Mapping[str, str]
    neutral: Mapping[str, Sequence[str]]
    defaults: Mapping[str, Mapping[str, Any]]
    spelled: Mapping[str, str]


@cache
def known_arguments(launcher: str) -> Known:
    """Return what is known of a launcher's arguments."""
    table = packaged_toml("weft.plan", "arguments.toml")[launcher]
    idle = {name: reason for reason, names in table["without_effect"].items() for name in names}
    rest = (table.get(name, {}) for name in ("not_modelled", "neutral", "defaults", "spelled"))
    return Known(table.get("reads", {}), idle, *rest)


TEXTS = frozenset(("model", "also_model", "deepspeed", "layers_per_stage", "quantization", "drafts", "drafter"))
"""What of a run is a text, where no value is a number."""
SHARES = frozenset(("gpu_memory_utilization",))
"""What of a run is a share from 0 to 1."""
_OPEN = (OFF, "null", "none")
"""Values that turn an argument off, or leave it open."""
_SHOWN = 60
"""Most characters of a value that is shown."""


def _entry(table: Known, name: str, beginnings: bool) -> str:
    """Return the entry of a table that stands for an argument: its name, a pattern, or its longest beginning."""
    entries = (*table.without_effect, *table.not_modelled)
    if name in table.without_effect or name in table.not_modelled:
        return name
    fits = (
        each for each in entries if ("*" in each and fnmatchcase(name, each)) or (beginnings and name.startswith(each))
    )
    return max(fits, key=len, default="")


class Machine(NamedTuple):
    """The nodes of the system on which a script starts, and the GPUs of each."""

    nodes: int
    gpus_per_node: int


class ArgumentReader:
    """The arguments of a file: those that are read count as used, `account` returns what became of all.

    `dash` stands before each name in messages, and says that arguments are those of a command line: a flag takes no
    value. `names` are names as the file has them; arguments in `launching` are of a launcher, with the reason why they
    change nothing in the program that it starts.
    """

    def __init__(
        self,
        given: Arguments,
        file: str,
        dash: str = "--",
        names: Mapping[str, str] | None = None,
        launching: Mapping[str, str] | None = None,
    ) -> None:
        self.given, self.file, self.dash = given, file, dash
        self.names, self.launching = names or {}, launching or {}
        self.used: dict[str, str] = {}
        self.left_out: list[str] = []
        self.not_modelled: dict[str, str] = {}
        self.without_effect: dict[str, str] = {}

    def name(self, name: str) -> str:
        """Return an argument as the file has it."""
        return self.names.get(name, self.dash + name)

    def flag(self, name: str, became: str = "") -> bool:
        """Return whether an argument is there, and not turned off."""
        return bool(self.switch(name, became))

    def switch(self, name: str, became: str = "") -> bool | None:
        """Return whether an argument is turned on or off; None if it is not there."""
        if name not in self.given:
            return None
        values = [each for each in self.given[name] if not is_unknown(each)]
        if values and (self.dash or len(values) > 1):
            raise self.wrong(name, " ".join(values), "no value: it is a flag")
        on = _TRUTH.get(values[0].lower()) if values else True
        if on is None:
            raise self.wrong(name, values[0], "true or false")
        self.used[self.name(name)] = became if on else "off"
        return on

    def leave_out(self, name: str, value: str = "") -> None:
        """Take an argument, or one value of it, as not understood."""
        self.used.pop(self.name(name), None)
        self.left_out.append(f"{self.name(name)} {value}".rstrip())

    def not_model(self, name: str, effect: str, value: str = "") -> None:
        """Take an argument, or one value of it, as not modelled, with its likely effect."""
        self.used.pop(self.name(name), None)
        self.not_modelled[f"{self.name(name)} {value}".rstrip()] = effect

    def idle(self, name: str, reason: str) -> None:
        """Take an argument as without effect beside the others, for a reason."""
        self.used.pop(self.name(name), None)
        self.without_effect[self.name(name)] = reason

    def table(self, reads: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the arguments in a table state, by what of a run they are.

        Raises ConfigError for a value that an argument does not take, and for two that state one thing differently.
        """
        found: dict[str, Any] = {}
        names: dict[str, str] = {}
        for name, rule in reads.items():
            if name not in self.given:
                continue
            what = rule if isinstance(rule, str) else rule["is"]
            value = self._stated(name, what, {} if isinstance(rule, str) else rule)
            if value is None:
                if not any(each.startswith(self.name(name)) for each in self.not_modelled):
                    self.used.setdefault(self.name(name), "not stated")
                continue
            if found.setdefault(what, value) != value:
                both = f"{names[what]} is {found[what]}, and {self.name(name)} is {value}; state one of them"
                raise ConfigError(both, self.file)
            names.setdefault(what, self.name(name))
        return found

    def _stated(self, name: str, what: str, rule: Mapping[str, Any]) -> Any:
        """Return the value of an argument by its rule in a table; None if it leaves the value open."""
        values = {key: value for key, value in rule.items() if key not in ("is", "otherwise")}
        shown = " ".join(self.given[name])
        written = shown.lower() or "true"
        fits = next((key for key in values if fnmatchcase(written, key)), None)
        if is_unknown(shown):
            raise self.unknown(name, shown)
        if written in ("null", "auto", "none") and fits in (None, "*"):
            return None
        if fits is not None:
            value = values[fits]
            if isinstance(value, Mapping):
                self.not_model(name, value["effect"], shown)
                return None
            self.used[self.name(name)] = shown or "on"
            return None if value == "" else value
        if values and "otherwise" not in rule:
            raise self.wrong(name, shown, f"one of {', '.join(values)}")
        if what in TEXTS:
            self.used[self.name(name)] = shown
            return shown
        if what in SHARES:
            if not re.fullmatch(r"0?\.[0-9]{1,9}|1(\.0*)?", shown, re.ASCII):
                raise self.wrong(name, shown, "a share above 0, of at most 1")
            self.used[self.name(name)] = shown
            return float(shown)
        return self.number(name, least=0 if what == "zero" else 1)

    def text(self, *names: str, known: Sequence[str] = ()) -> str | None:
        """Return the value of the first of some arguments that is there, and not turned off.

        Raises ConfigError for none, several, one that the script does not say, and one that is not `known`.
        """
        for name in names:
            if name not in self.given:
                continue
            values = self.given[name]
            while len(values) > 1 and is_unknown(values[-1]):  # what a variable adds behind it
                values = values[:-1]
            if not values:
                rule = f"one of {', '.join(known)}" if known else "a value"
                raise self.wrong(name, "", f"{rule}; arguments of the script follow --" if self.dash else rule)
            if len(values) > 1:
                raise self.wrong(name, " ".join(values), "one value")
            value = values[0]
            if is_unknown(value):
                raise self.unknown(name, value)
            if not self.dash and value.lower() in ("false", "none", "null") and value.lower() not in known:
                self.used[self.name(name)] = "off"
                return None
            if known and value not in known:
                raise self.wrong(name, value, f"one of {', '.join(known)}")
            for same in names:
                if self.given.get(same) == self.given[name]:
                    self.used[self.name(same)] = value
            return value
        return None

    def texts(self, name: str) -> list[str] | None:
        """Return all values of an argument; None if it is not there."""
        if name not in self.given:
            return None
        values = [part for each in self.given[name] for part in re.split(r"[\s,]+", each.strip("[]()")) if part]
        found = [each.strip("'\"") for each in values]
        self.used[self.name(name)] = " ".join(found)
        return found

    def number(self, *names: str, least: int = 1) -> int | None:
        """Return the value as a whole number of at least `least`; ConfigError for another one."""
        value = self.text(*names)
        if value is None:
            return None
        if not _WHOLE.fullmatch(value) or int(float(value)) < least:
            name = next(name for name in names if name in self.given)
            raise self.wrong(name, value, f"a whole number of at least {least}")
        return int(float(value))

    def of_machine(self, *names: str) -> int | None:
        """Return a number of nodes, or of GPUs; None also where the run's environment or the machine decides it."""
        for name in names:
            value = " ".join(self.given.get(name, ()))
            if is_unknown(value) or value in ("auto", "gpu", "cpu") or re.fullmatch(r"\d+:\d+", value):
                self.used[self.name(name)] = "as the system"
                return None
        return self.number(*names)

    def account(self, launcher: str, beginnings: bool = False) -> dict[str, Any]:
        """Return what became of every argument, as fields of `Launched`.

        With `beginnings` the table's names are those of sections, and stand for all that begins with them.
        """
        table = known_arguments(launcher)
        idle, unknown, effects = dict(self.without_effect), [], dict(self.not_modelled)
        open_ = _OPEN if self.dash else (*_OPEN, "")
        said = {*self.used, *idle, *(each.partition(" ")[0] for each in (*self.left_out, *effects))}
        for name, values in self.given.items():
            shown_as = self.name(name)
            if shown_as in said:
                continue
            key, value = _entry(table, name, beginnings), " ".join(values)
            if not key and name.startswith("no-") and (off := _entry(table, name[3:], beginnings)):
                idle[shown_as] = table.without_effect.get(off, "timed so here")
                continue
            if key in table.not_modelled and value.lower() not in (*open_, *map(str.lower, table.neutral.get(key, ()))):
                effects[f"{shown_as} {value[:_SHOWN]}".rstrip()] = table.not_modelled[key]
            elif key in table.not_modelled or key in table.without_effect:
                idle[shown_as] = table.without_effect.get(key, "timed so here")
            elif name in self.launching:
                idle[shown_as] = self.launching[name]
            else:
                unknown.append(shown_as)
        return {
            "used": self.used,
            "without_effect": idle,
            "not_modelled": effects,
            "not_understood": (*self.left_out, *unknown),
        }

    def wrong(self, name: str, value: str, rule: str) -> ConfigError:
        """Return the error of a value that breaks a rule."""
        return ConfigError(f"{self.name(name)} is {show_value(value)}; it takes {rule}", self.file)

    def unknown(self, name: str, value: str) -> ConfigError:
        """Return the error of a value that the script does not say."""
        variable = unknown_name(value)
        if variable:
            rule = f"the script does not set its variable; state it, like --define {variable}=8"
            return ConfigError(f"{self.name(name)} is ${variable}; {rule}", self.file)
        runs = re.search(r"\$\((?!\()|`", value)
        what = "the output of a command, which is not run" if runs else "arithmetic that Weft does not follow"
        rule = f"{what}; set a variable in its place, and state it by --define"
        return ConfigError(f"{self.name(name)} is {rule}", self.file)
