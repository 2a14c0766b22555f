"""Write a fit as a TOML file that Weft reads: it extends a machine or a profile and states each value's source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import InputError
from weft.core.files import data_folder, to_json, write_atomically
from weft.core.units import Dimension
from weft.core.units import format as format_quantity
from weft.estimate import Parameter
from weft.hardware import Gpu, system
from weft.kernels.library.profiles import Profile
from weft.lab.calibration import HOLDOUT, SEED, Calibrated, Fitted, calibrate_subject
from weft.lab.machines import Machines
from weft.lab.problems import merge_problems
from weft.lab.run import subjects_of
from weft.lab.subjects import Subject
from weft.lab.tables import Kind

_DIGITS = 6
_SHOWN_DIGITS = 4


@dataclass(frozen=True)
class Target:
    """A machine or profile to calibrate: its rows with their model, and the head of the file to write.

    The fitted machine also matches the names `others` in rows, written under the key `others_key`. `fitted_before` says
    whether a parameter's start value was itself calibrated.
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
        """The TOML text of a fit, to be written to `out`; `data` names the rows in the sources.

        It holds the values that the rows determined; all others come from the file that it extends.
        """
        others = ", ".join(_quote(name) for name in self.others)
        head = [
            f"extends = {_quote(reference(self.extends, out))}",
            f"name = {_quote(out.stem)}",
            f"title = {_quote(self.title)}",
            f"description = {_quote(self.description)}",
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


MOST_ROWS = 5000
"""Most rows of a group in a fit: more slow it down without changing it."""


@dataclass(frozen=True)
class Calibration:
    """A machine fitted to its own rows: the fit with its errors on rows that it did not see, and the file it makes."""

    target: Target
    done: Calibrated
    data: str

    def to_dict(self) -> dict[str, Any]:
        """The parameters and the errors as plain data."""
        return self.done.to_dict()

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted GPU or library profile as a TOML file, which `weft.gpu` and `weft validate` read."""
        return write_atomically(Path(path), self.target.text(self.done, Path(path), self.data))


def calibrate(
    data: str | os.PathLike[str] | None = None,
    *,
    gpu: str | None = None,
    system: str | None = None,
    holdout: float = HOLDOUT,
    seed: int = SEED,
) -> Calibration:
    """Fit a GPU to its measured GEMMs, or the collective library of a system to its measured collectives.

    `data` is a folder or file of measurements (None: the folder of WEFT_DATA). `holdout` is the share of rows, drawn by
    `seed`, that the fit does not see and on which its errors are measured. Only physical parameters are fitted, each
    within plausible bounds. Raises InputError unless either `gpu` or `system` is named, and for too few rows.

    `weft.calibrate("gemm.csv", gpu="h100-sxm").write("my-gpu.toml")` makes a GPU that every command takes by its file.
    """
    if (gpu is None) == (system is None):
        raise InputError("name either a gpu or a system to calibrate, like weft.calibrate('gemm.csv', gpu='h100-sxm')")
    place = data_folder(data)
    target = gpu_target(place, gpu) if gpu else library_target(place, system or "")
    return Calibration(
        target, calibrate_subject(target.subject, holdout, seed, MOST_ROWS), f"{place.name}, seed {seed}"
    )


def gpu_target(place: Path, name: str) -> Target:
    """Calibrate a GPU (name or TOML file) with its GEMMs among the measurements; InputError if there are none."""
    machines = Machines.of((name,))
    (gpu,) = machines.chosen
    return _target(place, machines, "gemm", gpu, name, "aliases")


def library_target(place: Path, name: str) -> Target:
    """Calibrate a system's collective library with its collectives among the measurements; InputError if none."""
    gpu = system(name).gpu
    profile = Machines().profile(gpu)
    return _target(place, Machines((gpu,)), "collective", profile, profile.name, "gpus", gpu.name)


def _target(
    place: Path, machines: Machines, kind: Kind, of: Gpu | Profile, extends: str, others_key: str, *others: str
) -> Target:
    """The rows of one kind that calibrate a GPU or profile; `others` are names in its file (default: the rows')."""
    subjects, problems, _ = subjects_of(place, machines, (kind,))
    subject = subjects[0]
    names = others or sorted(set(subject.rows["gpu"]))
    starts = (of.provenance.get(parameter.path) for parameter in subject.parameters)
    return Target(
        subject=subject,
        extends=extends,
        title=of.title if of.title.endswith(", calibrated") else f"{of.title}, calibrated",
        description=f"{of.description} Calibrated to measurements {'on' if others else 'of'} {', '.join(names)}.",
        others_key=others_key,
        others=names,
        complaints=[str(problem) for problem in merge_problems(problems)],
        fitted_before=any(start is not None and start.kind == "calibrated" for start in starts),
    )


def show_parameter(value: float, parameter: Parameter, digits: int = _SHOWN_DIGITS) -> str:
    """A parameter's value for people [its base unit]."""
    return format_quantity(value, Dimension.SECONDS if parameter.unit == "s" else Dimension.COUNT, digits)


def _leaf(key: str, found: Fitted, source: str) -> str:
    texts = (show_parameter(number, found.parameter, _DIGITS) for number in (found.value, found.low, found.high))
    value, low, high = map(_quote, texts) if found.parameter.unit == "s" else texts
    edge = f"; the fit stopped at a bound ({found.state})" if found.state.startswith("at ") else ""
    text = _quote(source + edge)
    return f'{key} = {{ value = {value}, kind = "calibrated", low = {low}, high = {high}, source = {text} }}'


def _quote(text: str) -> str:
    """A TOML string; JSON escapes are valid in TOML."""
    return to_json(text, ensure_ascii=False)


def reference(name_or_file: str, out: Path) -> str:
    """Return how a file at `out` refers to what it extends: a name unchanged, a file by its relative path."""
    if not name_or_file.endswith(".toml"):
        return name_or_file
    return Path(os.path.relpath(Path(name_or_file).resolve(), out.resolve().parent)).as_posix()
