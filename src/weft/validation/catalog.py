"""A fit as a file that Weft reads: what extends a machine or a library profile, with every value's source."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.hardware import Gpu, Provenance, system
from weft.library.profiles import values
from weft.units import Dimension
from weft.units import format as format_quantity
from weft.validation.calibration import Fitted
from weft.validation.machines import Machines
from weft.validation.problems import gathered
from weft.validation.protocols import Calibrated
from weft.validation.run import subjects_of
from weft.validation.subjects import Subject

_DIGITS = 6
_SHOWN_DIGITS = 4
_UNITS = {
    "s": Dimension.SECONDS,
    "Hz": Dimension.HERTZ,
    "B": Dimension.BYTES,
    "B/s": Dimension.BYTES_PER_SECOND,
}


@dataclass(frozen=True)
class Target:
    """What is calibrated: the rows with their model, and how its file begins.

    `others` are the names in rows for which the fitted machine stands, under the key `others_key`; `fitted_before` says
    whether a parameter starts from a value that was itself calibrated.
    """

    subject: Subject
    extends: str
    title: str
    description: str
    others_key: str
    others: Sequence[str]
    dimensions: dict[str, Dimension]
    complaints: Sequence[str]
    fitted_before: bool

    def text(self, done: Calibrated, out: Path, data: str) -> str:
        """The TOML text of a fit, to be written to `out`; `data` names the rows.

        Only what the rows determined is stated; the rest is what the file extends.
        """
        others = ", ".join(_quoted(name) for name in self.others)
        head = [
            f"extends = {_quoted(reference(self.extends, out))}",
            f"name = {_quoted(out.stem)}",
            f"title = {_quoted(self.title)}",
            f"description = {_quoted(self.description)}",
            f"{self.others_key} = [{others}]",
        ]
        source = (
            f"fitted by weft calibrate to {done.fitted_rows} rows of {data}; on the {len(done.held_out.subject)} "
            f"rows held out the mean error is {done.after.mean_abs_err:.1%}"
        )
        tables: dict[str, list[str]] = {}
        for found in done.fit.determined():
            table, _, key = found.parameter.path.rpartition(".")
            tables.setdefault(table, []).append(_leaf(key, found, self.dimensions[found.parameter.path], source))
        blocks = ["\n".join([f"[{table}]", *leaves]) for table, leaves in tables.items()]
        return "\n\n".join(["\n".join(head), *blocks]) + "\n"


def gpu_target(place: Path, name: str) -> Target:
    """A GPU, by name or TOML file, and its GEMMs among the measurements; InputError if there are none."""
    machines = Machines.of((name,))
    (gpu,) = machines.chosen
    subjects, problems, _ = subjects_of(place, machines, ("gemm",))
    subject = subjects[0]
    names = sorted(set(subject.rows["gpu"].tolist()))
    rules = {parameter.path: Gpu.rules()[parameter.path] for parameter in subject.parameters}
    dimensions = {path: rule.dimension for path, rule in rules.items() if rule is not None}
    told = [str(problem) for problem in gathered(problems)]
    description = f"{gpu.description} Calibrated to measurements of {', '.join(names)}."
    return Target(
        subject,
        name,
        _title(gpu.title),
        description,
        "aliases",
        names,
        dimensions,
        told,
        _calibrated_before(subject, gpu.provenance),
    )


def library_target(place: Path, name: str) -> Target:
    """The collective library of a system and its collectives among the measurements; InputError if there are none."""
    found = system(name)
    subjects, problems, _ = subjects_of(place, Machines((found.gpu,)), ("collective",))
    subject = subjects[0]
    profile = Machines().profile(found.gpu)
    return Target(
        subject,
        profile.name,
        _title(profile.title),
        f"{profile.description} Calibrated to measurements on {found.gpu.name}.",
        "gpus",
        [found.gpu.name],
        {parameter.path: values()[parameter.path].rule.dimension for parameter in subject.parameters},
        [str(problem) for problem in gathered(problems)],
        _calibrated_before(subject, profile.provenance),
    )


def _title(title: str) -> str:
    return title if title.endswith(", calibrated") else f"{title}, calibrated"


def _calibrated_before(subject: Subject, provenance: Mapping[str, Provenance]) -> bool:
    starts = (provenance.get(parameter.path) for parameter in subject.parameters)
    return any(start is not None and start.kind == "calibrated" for start in starts)


def shown(value: float, unit: str) -> str:
    """A parameter for people [base unit of `unit`]."""
    return format_quantity(value, _UNITS.get(unit, Dimension.COUNT), _SHOWN_DIGITS)


def _leaf(key: str, found: Fitted, dimension: Dimension, source: str) -> str:
    value, low, high = (_shown(number, dimension) for number in (found.value, found.low, found.high))
    edge = f"; the fit stopped at a bound ({found.state})" if found.state.startswith("at ") else ""
    text = _quoted(source + edge)
    return f'{key} = {{ value = {value}, kind = "calibrated", low = {low}, high = {high}, source = {text} }}'


def _shown(value: float, dimension: Dimension) -> str:
    text = format_quantity(value, dimension, _DIGITS)
    return text if dimension is Dimension.COUNT else _quoted(text)


def _quoted(text: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False)


def reference(name_or_file: str, out: Path) -> str:
    """How a file at `out` names what it extends: a name as it is, a file by its path from there."""
    if not name_or_file.endswith(".toml"):
        return name_or_file
    return Path(os.path.relpath(Path(name_or_file).resolve(), out.resolve().parent)).as_posix()
