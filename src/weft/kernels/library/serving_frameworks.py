"""Serving frameworks and their versions: the tables of `serving_frameworks.toml` by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from weft.core.catalog import read_toml
from weft.core.errors import UnknownNameError, check_name

_FILE = "serving_frameworks.toml"


@cache
def framework_tables() -> Mapping[str, Any]:
    """Return what each serving framework does by default, by name."""
    return read_toml(resources.files("weft.kernels.library") / _FILE)


def framework_names() -> tuple[str, ...]:
    """Names of the serving frameworks."""
    return tuple(framework_tables())


def resolve_framework(text: object) -> tuple[str, str]:
    """Return the framework and its version that a text such as "vllm" or "vllm@0.10" names; no version is "".

    A version stands for its patches, so that 0.10.2 is 0.10 where rules are known of that one, and 0.15 is 0.15.1 where
    this is the only one known. Raises UnknownNameError for unknown ones.
    """
    if not isinstance(text, str):
        check_name("serving framework", text, framework_tables())
    name, at, version = str(text).partition("@")
    check_name("serving framework", name, framework_tables())
    if not at:
        return name, ""
    known = framework_tables()[name]["versions"]
    parts = version.removeprefix("v").split(".")
    for count in range(len(parts), 1, -1):
        if (shorter := ".".join(parts[:count])) in known:
            return name, shorter
    longer = [one for one in known if one.startswith(f"{'.'.join(parts)}.")]
    if len(longer) != 1:
        raise UnknownNameError(f"version of {name}", version, tuple(known), listed=True)
    return name, longer[0]
