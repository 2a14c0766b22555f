"""The arguments of a launch file, read by name and type; every one of them is accounted for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
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


@cache
def _table(launcher: str) -> Mapping[str, Any]:
    """Return what is known of a launcher's arguments: those without effect, and those that are not modelled."""
    tables: Mapping[str, Any] = packaged_toml("weft.plan", "arguments.toml")[launcher]
    return tables


class Machine(NamedTuple):
    """The nodes of the system on which a script starts, and the GPUs of each."""

    nodes: int
    gpus_per_node: int


class ArgumentReader:
    """The arguments of a file: those that are read count as used, `account` returns what became of all.

    `dash` stands before each name in messages, and says that arguments are those of a command line: a flag takes no
    value. `names` are names as the file has them; those of arguments in `launching` are of a launcher, which starts
    the program and changes nothing in it.
    """

    def __init__(
        self,
        given: Arguments,
        file: str,
        dash: str = "--",
        names: Mapping[str, str] | None = None,
        launching: Collection[str] = (),
    ) -> None:
        self.given, self.file, self.dash, self.launching = given, file, dash, launching
        self.names = names or {}
        self.used: dict[str, str] = {}
        self.left_out: list[str] = []
        self.not_modelled: dict[str, str] = {}
        self.without_effect: list[str] = []

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

    def idle(self, name: str) -> None:
        """Take an argument as without effect beside the others."""
        self.used.pop(self.name(name), None)
        self.without_effect.append(self.name(name))

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
            self.used[self.name(name)] = value
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
        table = _table(launcher)
        idle, unknown, effects = [*self.without_effect], [], dict(self.not_modelled)
        said = {*self.used, *idle, *(each.partition(" ")[0] for each in (*self.left_out, *effects))}
        for name, values in self.given.items():
            shown_as = self.name(name)
            if shown_as in said:
                continue
            key = name
            if beginnings:
                keys = (each for each in (*table["without_effect"], *table["not_modelled"]) if name.startswith(each))
                key = max(keys, key=len, default="")
            value = " ".join(values)
            if key in table["not_modelled"] and value.lower() not in (OFF, *table["neutral"].get(key, ())):
                effects[f"{shown_as} {value}".rstrip()] = table["not_modelled"][key]
            elif key in table["not_modelled"] or key in table["without_effect"] or name in self.launching:
                idle.append(shown_as)
            else:
                unknown.append(shown_as)
        return {
            "used": self.used,
            "without_effect": tuple(idle),
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
        rule = "the output of a command, which is not run; set a variable in its place, and state it by --define"
        return ConfigError(f"{self.name(name)} is {rule}", self.file)
