"""A fit as a file that Weft reads: what extends a machine or a library profile, with every value's source."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.estimate import Parameter
from weft.hardware import Gpu, system
from weft.library.profiles import Profile
from weft.units import Dimension
from weft.units import format as format_quantity
from weft.validation.calibration import Calibrated, Fitted
from weft.validation.machines import Machines
from weft.validation.problems import gathered
from weft.validation.run import subjects_of
from weft.validation.subjects import Subject
from weft.validation.tables import Kind

_DIGITS = 6
_SHOWN_DIGITS = 4


@dataclass(frozen=True)
class Target:
    """What is calibrated: the rows with their model, and how its file begins.

    The fitted machine also answers to the names `others` of rows, written under the key `others_key`. `fitted_before`
    says whether a parameter starts from a value that was itself calibrated.
    """

    subject: Subject
    extends: str
    title: str
    description: str
    others_key: str
    others: Sequence[str]
    complaints: Sequence[str]
    fitted_before: bool

    def text(self, done: Calibrated, out: Path, data: str) -> str:
        """The TOML text of a fit, to be written to `out`; `data` names the rows.

        It holds what the rows determined; every other value comes from what the file extends.
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
            tables.setdefault(table, []).append(_leaf(key, found, source))
        blocks = ["\n".join([f"[{table}]", *leaves]) for table, leaves in tables.items()]
        return "\n\n".join(["\n".join(head), *blocks]) + "\n"


def gpu_target(place: Path, name: str) -> Target:
    """A GPU, by name or TOML file, and its GEMMs among the measurements; InputError if there are none."""
    machines = Machines.of((name,))
    (gpu,) = machines.chosen
    return _target(place, machines, "gemm", gpu, name, "aliases")


def library_target(place: Path, name: str) -> Target:
    """The collective library of a system and its collectives among the measurements; InputError if there are none."""
    gpu = system(name).gpu
    profile = Machines().profile(gpu)
    return _target(place, Machines((gpu,)), "collective", profile, profile.name, "gpus", gpu.name)


def _target(
    place: Path, machines: Machines, kind: Kind, of: Gpu | Profile, extends: str, others_key: str, *others: str
) -> Target:
    """The rows of a kind that calibrate a GPU or profile; `others` are the names in its file (default: the rows')."""
    subjects, problems, _ = subjects_of(place, machines, (kind,))
    subject = subjects[0]
    names = others or sorted(set(subject.rows["gpu"].tolist()))
    starts = (of.provenance.get(parameter.path) for parameter in subject.parameters)
    return Target(
        subject=subject,
        extends=extends,
        title=of.title if of.title.endswith(", calibrated") else f"{of.title}, calibrated",
        description=f"{of.description} Calibrated to measurements {'on' if others else 'of'} {', '.join(names)}.",
        others_key=others_key,
        others=names,
        complaints=[str(problem) for problem in gathered(problems)],
        fitted_before=any(start is not None and start.kind == "calibrated" for start in starts),
    )


def shown(value: float, parameter: Parameter, digits: int = _SHOWN_DIGITS) -> str:
    """A value of a parameter for people [its base unit]."""
    return format_quantity(value, Dimension.SECONDS if parameter.unit == "s" else Dimension.COUNT, digits)


def _leaf(key: str, found: Fitted, source: str) -> str:
    texts = (shown(number, found.parameter, _DIGITS) for number in (found.value, found.low, found.high))
    value, low, high = map(_quoted, texts) if found.parameter.unit == "s" else texts
    edge = f"; the fit stopped at a bound ({found.state})" if found.state.startswith("at ") else ""
    text = _quoted(source + edge)
    return f'{key} = {{ value = {value}, kind = "calibrated", low = {low}, high = {high}, source = {text} }}'


def _quoted(text: str) -> str:
    """A TOML string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False)


def reference(name_or_file: str, out: Path) -> str:
    """How a file at `out` names what it extends: a name as it is, a file by its path from there."""
    if not name_or_file.endswith(".toml"):
        return name_or_file
    return Path(os.path.relpath(Path(name_or_file).resolve(), out.resolve().parent)).as_posix()
