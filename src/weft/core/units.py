"""Parse quantities with units, "450 GB/s", into plain numbers and format them; no other module converts.

Prefixes are decimal (k, M, G, T, P) or, for bytes, binary (Ki, Mi, Gi, Ti, Pi); B is a byte and b a bit, so
"100 Gb/s" is 12.5 GB/s. Plain numbers are bytes, bytes/s, seconds, hertz; the engine counts in femtoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from weft.core.errors import InputError, UnitError, join_or, show_value

FS_PER_S = 10**15
"""Femtoseconds in a second."""
LARGEST_COUNT = 2**31 - 1
"""Largest dimension of a product or a layer that a user may give: what libraries index with 32 bits."""


class Dimension(StrEnum):
    """A physical dimension; the enum's value names its base unit."""

    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    SECONDS = "seconds"
    HERTZ = "hertz"
    FLOPS = "FLOP/s"
    WATTS = "watts"
    COUNT = "count"


_DECIMAL = {"": Fraction(1), "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9)}
_DECIMAL |= {"T": Fraction(10**12), "P": Fraction(10**15)}
_BINARY = {f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTP")}
_SMALL = {"": Fraction(1), "m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}
_SMALL |= {"p": Fraction(1, 10**12), "f": Fraction(1, FS_PER_S)}

_LONG = {"min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}

_BYTE_UNITS = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_BIT_UNITS = {f"{prefix}b": factor / 8 for prefix, factor in (_DECIMAL | _BINARY).items()}

_OPERATIONS = ("FLOP/s", "FLOPS", "FLOPs", "OP/s", "OPS")
_UNITS: Mapping[Dimension, Mapping[str, Fraction]] = {
    Dimension.BYTES: _BYTE_UNITS | _BIT_UNITS,
    Dimension.BYTES_PER_SECOND: {f"{unit}/s": factor for unit, factor in (_BYTE_UNITS | _BIT_UNITS).items()},
    Dimension.SECONDS: {f"{prefix}s": factor for prefix, factor in _SMALL.items()} | {"µs": _SMALL["u"], **_LONG},
    Dimension.HERTZ: {f"{prefix}Hz": factor for prefix, factor in _DECIMAL.items()},
    Dimension.FLOPS: {f"{prefix}{unit}": factor for prefix, factor in _DECIMAL.items() for unit in _OPERATIONS},
    Dimension.WATTS: {f"{prefix}W": factor for prefix, factor in _DECIMAL.items()},
    Dimension.COUNT: {"": Fraction(1)},
}
_EXAMPLES: Mapping[Dimension, str] = {
    Dimension.BYTES: "16 MiB",
    Dimension.BYTES_PER_SECOND: "450 GB/s",
    Dimension.SECONDS: "500 ns",
    Dimension.HERTZ: "1.4 GHz",
    Dimension.FLOPS: "989 TFLOP/s",
    Dimension.WATTS: "700 W",
    Dimension.COUNT: "80",
}
# A capacity gets a binary prefix when it is a whole number of quarters of it ("1.5 KiB", "16 MiB").
_BINARY_PARTS = 4
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\s\d]\S*)?\s*")


def example(dimension: Dimension) -> str:
    """Return a well-formed quantity of `dimension`, for messages and help texts."""
    return _EXAMPLES[dimension]


def parse(text: str, dimension: Dimension | str) -> float:
    """Parse a quantity such as "450 GB/s" into a plain number [base unit of `dimension`], correctly rounded.

    Raises UnitError if `text` is no quantity, lacks a unit, or has a unit of another dimension.
    """
    wanted = Dimension(dimension)
    if not isinstance(text, str):
        raise UnitError(f"{show_value(text)} is not a quantity in {wanted}; write it like '{example(wanted)}'")
    return _parse(text, wanted)


@lru_cache(maxsize=1 << 13)
def _parse(text: str, wanted: Dimension) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"'{text}' is not a quantity in {wanted}; write it like '{example(wanted)}'")
    number, unit = match[1], match[2] or ""
    factor = _UNITS[wanted].get(unit)
    if factor is None:
        raise UnitError(_unit_problem(text, unit, wanted))
    try:
        return float(Fraction(number) * factor)
    except (OverflowError, ValueError):  # ValueError: more digits than Python converts
        raise UnitError(f"{show_value(text)} is too large for a quantity in {wanted}; give one below 1e308") from None


def parse_shape(text: str) -> tuple[int, int, int]:
    """M, N and K of a GEMM in a text such as "8192,8192,8192"; InputError for anything else.

    >>> parse_shape("8192, 4256, 2128")
    (8192, 4256, 2128)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not part.isdecimal():
            raise InputError(f"'{part}' is no whole number; write M,N,K, like 8192,8192,8192")
        if len(part) > len(str(LARGEST_COUNT)) or int(part) > LARGEST_COUNT:
            raise InputError(f"{shorten_digits(part)} is too large; give at most {LARGEST_COUNT}")
    if len(parts) != 3:
        raise InputError(f"'{text}' has {len(parts)} dimensions; write M,N,K, like 8192,8192,8192")
    m, n, k = map(int, parts)
    return m, n, k


def parse_collective(text: str) -> tuple[str, int]:
    """Return the name and size [bytes] of a collective in a text such as "all_reduce:256MiB".

    Raises InputError if one is missing or the size is 0.
    """
    name, _, moved = (part.strip() for part in text.partition(":"))
    if not (name and moved):
        raise InputError(f"'{text}' is no collective with its size; write it like all_reduce:256MiB")
    bytes_ = int(parse(moved, Dimension.BYTES))
    if bytes_ < 1:
        raise InputError(f"'{text}' moves nothing; give a size above zero, like {name}:256MiB")
    return name, bytes_


def shorten_digits(digits: str) -> str:
    """Return a number for messages: if it is long, its first digits and how many digits it has."""
    return digits if len(digits) <= 24 else f"{digits[:8]}... ({len(digits)} digits)"


def common_unit(texts: Sequence[str]) -> tuple[list[float], str]:
    """Return the numbers of some quantities in the unit of the first one, and that unit.

    Raises UnitError for invalid quantities, and for several dimensions.

    >>> common_unit(["150 GB/s", "0.3 TB/s"])
    ([150.0, 300.0], 'GB/s')
    """
    match = _QUANTITY.fullmatch(str(texts[0]))
    unit = str(match[2] or "") if match else "no unit"
    for dimension, units in _UNITS.items():
        if unit in units:
            return [float(Fraction(parse(text, dimension)) / units[unit]) for text in texts], unit
    raise UnitError(f"{show_value(texts[0])} is no quantity; write it like '{example(Dimension.BYTES_PER_SECOND)}'")


def _unit_problem(text: str, unit: str, wanted: Dimension) -> str:
    shown = example(wanted)
    if not unit:
        likely = f"'{text.strip()} s' or " if wanted is Dimension.SECONDS else ""
        return f"'{text}' has no unit, but {wanted} are expected; write it like {likely}'{shown}'"
    if wanted is Dimension.COUNT:
        return f"'{text}' has a unit, but a bare count is expected; write it like '{shown}'"
    for other, units in _UNITS.items():
        if unit in units:
            return f"'{text}' is in {other}, but {wanted} are expected; write it like '{shown}'"
    alike = _alike(unit, wanted)
    hint = f"did you mean {join_or(alike)}?" if alike else f"write it like '{shown}'"
    return f"'{text}' has the unknown unit '{unit}', but {wanted} are expected; {hint}"


def _alike(unit: str, wanted: Dimension) -> list[str]:
    """Known units that differ from `unit` only in case, in the binary i, or as "Gbps" does from "Gb/s"."""
    plain = re.sub(r"(?<=b)ps$", "/s", unit.lower().replace("bit", "b"))
    same = [known for known in _UNITS[wanted] if known.lower().replace("i", "") == plain]
    return [known for known in same if ("B" in known) == ("B" in unit)] or same


def format(value: float, dimension: Dimension | str, digits: int = 15) -> str:
    """`value` [base unit of `dimension`] with the prefix that suits it, to `digits` significant digits.

    With the default digits, parse(format(x)) equals x to 1 part in 10^12.
    """
    wanted = Dimension(dimension)
    if wanted is Dimension.BYTES:
        return format_bytes(value, digits)
    if wanted is Dimension.BYTES_PER_SECOND:
        return format_rate(value, digits)
    if wanted is Dimension.SECONDS:
        return format_time(value, digits)
    if wanted is Dimension.HERTZ:
        return format_frequency(value, digits)
    if wanted is Dimension.FLOPS:
        return _scale_unit(value, {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}, digits)
    if wanted is Dimension.WATTS:
        return _scale_unit(value, {"W": Fraction(1), "kW": Fraction(1000), "MW": Fraction(10**6)}, digits)
    return f"{value:.{digits}g}"


def count_words(count: int, what: str) -> str:
    """Return a number of things: "1 wave", "2 waves"."""
    return f"{count} {what}" + "s" * (count != 1)


def format_bytes(value: float, digits: int = 15) -> str:
    """Return a capacity [bytes]: binary prefix where that is exact ("16 MiB"), else decimal ("16 MB")."""
    decimal = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()}
    binary = {f"{prefix}B": factor for prefix, factor in _BINARY.items() if factor <= abs(value)}
    if binary and math.isfinite(value):
        unit, factor = max(binary.items(), key=lambda item: item[1])
        if (Fraction(value) / factor * _BINARY_PARTS).denominator == 1:
            return _scale_unit(value, {unit: factor}, digits)
    return _scale_unit(value, decimal, digits)


def format_rate(value: float, digits: int = 15) -> str:
    """Return a data rate [bytes/s] with a decimal prefix: "1.024 TB/s"."""
    return _scale_unit(value, {f"{prefix}B/s": factor for prefix, factor in _DECIMAL.items()}, digits)


def format_time(value: float, digits: int = 15) -> str:
    """Return a duration [seconds] with the prefix that suits it: "143 ns"."""
    return _scale_unit(value, {f"{prefix}s": factor for prefix, factor in _SMALL.items()}, digits)


def format_frequency(value: float, digits: int = 15) -> str:
    """Return a frequency [hertz] with a decimal prefix: "1.4 GHz"."""
    return _scale_unit(value, {f"{prefix}Hz": factor for prefix, factor in _DECIMAL.items()}, digits)


def _scale_unit(value: float, units: Mapping[str, Fraction], digits: int) -> str:
    """A value in the largest unit that keeps it at or above 1 (allowing for rounding), else in the smallest unit."""
    ordered = sorted(units.items(), key=lambda item: item[1])
    if value == 0 or not math.isfinite(value):
        unit, factor = next(item for item in ordered if item[1] == 1)
        return f"{value:.{digits}g} {unit}"
    not_above = [item for item in ordered if float(item[1]) <= abs(value) * (1 + 1e-14)]
    unit, factor = not_above[-1] if not_above else ordered[0]
    return f"{float(Fraction(value) / factor):.{digits}g} {unit}"


def to_fs(seconds: float) -> int:
    """Return a duration [seconds] in whole femtoseconds, rounded half to even."""
    return round(Fraction(seconds) * FS_PER_S)
