"""A command group that imports a command only when it runs, so that `weft --help` is instant."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from weft.core.errors import InputError, UnknownNameError
from weft.core.extensions import extensions


@dataclass(frozen=True)
class LazyCommand:
    """A command that is imported on use: its location ("package.module:attribute") and its line in the command list."""

    home: str
    short_help: str

    def load(self) -> click.Command:
        """Import the command and return it."""
        module, attribute = self.home.split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@dataclass(frozen=True)
class Plugin:
    """A command of another distribution, found by its entry point `name` in the group "weft.commands"."""

    distribution: str
    name: str
    short_help: str

    def load(self) -> click.Command:
        """Import the command and return it; InputError if its distribution is not installed."""
        from importlib.metadata import entry_points

        for found in entry_points(group="weft.commands", name=self.name):
            command: click.Command = found.load()
            return command
        raise InputError(
            f"'weft {self.name}' is in the distribution {self.distribution}, which is not installed; in a clone of "
            f"Weft, run: pip install ./{self.name}"
        )


Commands = Mapping[str, LazyCommand | Plugin]


class LazyGroup(click.Group):
    """A click group whose help and shell completion import none of its commands.

    The help page lists `groups` of commands under their titles, or the commands of `lazy` under one. With `extends`,
    extensions of Weft add commands to the groups; a command of `groups` is found without looking for them.
    """

    def __init__(
        self, *args: Any, groups: Mapping[str, Commands] | None = None, lazy: Commands | None = None,
        extends: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.built_in, self.extends = groups or {"Commands": lazy or {}}, extends

    @cached_property
    def groups(self) -> Mapping[str, Commands]:
        """Return the commands by the title of their group; commands of extensions follow the built-in ones."""
        if not self.extends:
            return self.built_in
        groups: dict[str, dict[str, LazyCommand | Plugin]] = {t: dict(each) for t, each in self.built_in.items()}
        for title, name, home, short_help in (
            (title, name, *about)
            for each in extensions()
            for title, commands in each.commands.items()
            for name, about in commands.items()
        ):
            groups.setdefault(title, {})[name] = LazyCommand(home, short_help)
        return groups

    @property
    def lazy(self) -> Commands:
        """Every command by name, in the order of the groups."""
        return {name: command for commands in self.groups.values() for name, command in commands.items()}

    def find(self, name: str) -> LazyCommand | Plugin | None:
        """Return the command of that name, or None if there is none."""
        built_in = next((commands[name] for commands in self.built_in.values() if name in commands), None)
        return built_in or self.lazy.get(name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, then release the paths that it reserved and restore stdout."""
        with redirect_stdout(sys.stdout):
            return copy_context().run(super().main, *args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which they were given."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None if there is none."""
        command = self.find(cmd_name)
        return command.load() if command else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands or options that begin with the typed text."""
        commands = [CompletionItem(name, help=command.short_help) for name, command in self.lazy.items()]
        found = [command for command in commands if command.value.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's arguments, return the rest; InputError for an empty one, such as an unset variable."""
        for before, argument in zip(["", *args], args, strict=False):
            option, equals, value = argument.partition("=")
            if not argument or (equals and not value and option.startswith("--")):
                what = option or before
                raise InputError(
                    f"an argument{f' behind {what}' if what else ''} is empty; give a value or leave it out"
                )
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, and its own arguments.

        Raises:
            UnknownNameError: no command has that name.
        """
        if not args[0].startswith("-") and not ctx.resilient_parsing and self.find(args[0]) is None:
            raise UnknownNameError("command", args[0], self.lazy)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, group by group, from their short helps."""
        widest = max(map(len, self.lazy))
        for title, commands in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), command.short_help) for name, command in commands.items()])
