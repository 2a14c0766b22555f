"""Measured collectives as subjects: one per GPU, with the library profile that serves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError
from weft.estimate import collective_parameters, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.library.collectives import canonical
from weft.library.profiles import Profile
from weft.validation.checks import beyond_physics, collective_floor, duplicates, unknown_names
from weft.validation.data import Rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem, left_out
from weft.validation.rigs import Rig, rig_of
from weft.validation.subjects import Subject

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LARGE, MEDIUM, ALL = ">= 16 MiB", ">= 1 MiB", "all sizes"
FROM_ROWS, FROM_MACHINE = "read from the rows", "the machine's"
"""Where the rate of the network comes from with which a row is predicted."""
_MiB = 2.0**20
_OF_ONE = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")
_TABLE = {"send_recv": "all_to_all", "broadcast": "all_gather"}
"""The tables of a profile that serve one collective, and those that serve another one as well."""


@dataclass(frozen=True, eq=False)
class Case:
    """Rows that differ in bytes alone: where they are, and what they were run on and with."""

    positions: npt.NDArray[np.int64]
    collective: str
    ranks: int
    system: System
    rig: Rig

    @property
    def gpu(self) -> Gpu:
        """The GPU of the system."""
        return self.system.gpu

    def seconds(self, size: FloatArray, profile: Profile) -> FloatArray:
        """Predicted times for some numbers of bytes [s]."""
        op = Collective(self.collective, cast(int, size), self.ranks, self.rig.dtype)
        harness = self.rig.harness(self.ranks, self.system.nodes, profile)
        return estimate(op, self.system, harness=harness).seconds

    def feels(self, path: str) -> bool:
        """Whether its times may depend on a value of a profile: any but those of the other collectives."""
        table = path.partition(".")[0]
        return table not in _OF_ONE or table == _TABLE.get(self.collective, self.collective)


def collective_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The rows of a collectives file by GPU, without those that cannot be true, and what is wrong with them.

    Rows of libraries without a model are told and left out.
    """
    rows = _of_chosen(rows, machines)
    problems = [
        *duplicates(rows),
        *unknown_names(rows, "system", hardware.system),
        *unknown_names(rows, "collective", canonical),
    ]
    kept = rows.take(left_out(problems, rows.line))
    wrong = [*_impossible_ranks(kept), *_forced(kept), *_without_model(kept)]
    kept = kept.take(left_out(wrong, kept.line))
    problems += wrong
    subjects = []
    for gpu, members in _by_gpu(kept):
        profile = machines.profile(gpu)
        believable, wrong = _believable(members, gpu, profile)
        problems += wrong
        if len(believable):
            subjects.append(_subject(believable, gpu, profile))
    return subjects, problems


@lru_cache(maxsize=256)
def cases_of(rows: Rows) -> tuple[Case, ...]:
    """The rows grouped by everything but their bytes."""
    texts = [rows.texts[name].tolist() for name in ("system", "collective", "source", "notes")]
    keys = zip(*texts, rows.numbers["ranks"].astype(int).tolist(), strict=True)
    members: dict[tuple[System, str, int, Rig], list[int]] = {}
    for position, (system, name, source, notes, ranks) in enumerate(keys):
        found, rig = _resolved(system, ranks), _rig(system, notes, source)
        members.setdefault((found, canonical(name), ranks, rig), []).append(position)
    return tuple(
        Case(np.array(positions), name, ranks, found, rig) for (found, name, ranks, rig), positions in members.items()
    )


@lru_cache(maxsize=1024)
def _resolved(system: str, ranks: int) -> System:
    """The machine that runs `ranks` ranks: what the text says, or another number of its GPUs."""
    return hardware.system(system, gpus=ranks)


@lru_cache(maxsize=4096)
def _rig(system: str, notes: str, source: str) -> Rig:
    return rig_of(system, notes, source)


@dataclass
class _Model:
    """Times of a GPU's rows under changed parameters; cases that a change does not reach are not computed again."""

    profile: Profile
    known: dict[tuple[object, ...], FloatArray] = field(default_factory=dict)

    def __call__(self, rows: Rows, values: Mapping[str, float]) -> FloatArray:
        profile = self.profile.replace(dict(values)) if values else self.profile
        seconds = np.empty(len(rows))
        for case in cases_of(rows):
            seconds[case.positions] = self._seconds(rows, case, profile, values)
        return seconds

    def _seconds(self, rows: Rows, case: Case, profile: Profile, values: Mapping[str, float]) -> FloatArray:
        felt = tuple(value for path, value in values.items() if case.feels(path))
        key = (case, felt)
        if key not in self.known:
            if len(self.known) > _REMEMBERED:
                self.known.clear()
            self.known[key] = case.seconds(rows.numbers["bytes"][case.positions], profile)
        return self.known[key]


_REMEMBERED = 20_000


def _subject(rows: Rows, gpu: Gpu, profile: Profile) -> Subject:
    size, labels = rows.numbers["bytes"], _labels(rows)
    parameters = collective_parameters(profile)
    return Subject(
        kind="collective",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels=labels,
        ranges={LARGE: size >= 16 * _MiB, MEDIUM: size >= _MiB, ALL: np.ones(len(rows), dtype=np.bool_)},
        predict=_Model(profile),
        parameters=parameters,
        start={parameter.path: profile.value(parameter.path) for parameter in parameters},
        vendor=gpu.vendor,
        # A network that was read from its rows leaves them nothing to say of the library.
        teaches=labels["network"] != FROM_ROWS,
    )


def _labels(rows: Rows) -> dict[str, npt.NDArray[np.object_]]:
    names = ("system", "dtype", "ranks", "collective", "library", "host", "nodes", "network")
    columns = {name: np.empty(len(rows), dtype=np.object_) for name in names}
    columns["system"][:] = rows.texts["system"].tolist()
    for case in cases_of(rows):
        told = (
            case.rig.dtype,
            case.ranks,
            case.collective,
            case.rig.library,
            case.rig.host,
            case.system.nodes,
            FROM_ROWS if case.rig.network_from_rows and case.system.nodes > 1 else FROM_MACHINE,
        )
        for name, value in zip(names[1:], told, strict=True):
            columns[name][case.positions] = value
    return columns


def _of_chosen(rows: Rows, machines: Machines) -> Rows:
    """The rows whose system has a chosen GPU; all of them if none was chosen."""
    if not machines.chosen:
        return rows
    wanted = {gpu.name for gpu in machines.chosen}
    names = rows.texts["system"]
    mine = [name for name in np.unique(names).tolist() if _gpu_name(name) in wanted]
    return rows.take(np.isin(names, mine))


def _gpu_name(system: str) -> str | None:
    try:
        return hardware.system(system).gpu.name
    except InputError:
        return None


def _impossible_ranks(rows: Rows) -> list[Problem]:
    problems = []
    columns = (rows.line, rows.texts["system"], rows.numbers["ranks"].astype(int))
    for line, system, ranks in zip(*(column.tolist() for column in columns), strict=True):
        try:
            _resolved(system, ranks)
        except InputError as error:
            problems.append(Problem(rows.file, (line,), "ranks", str(ranks), str(error)))
            continue
        if ranks < 2:
            problems.append(Problem(rows.file, (line,), "ranks", str(ranks), "a collective needs at least two ranks"))
    return problems


def _forced(rows: Rows) -> Iterator[Problem]:
    """Rows measured with a protocol or a number of channels that the library was told to use."""
    forced = (rows.texts["protocol"] != "") | (rows.texts["channels"] != "")
    if forced.any():
        rule = "protocol and channels are forced in these rows; Weft predicts what the library chooses"
        yield Problem(rows.file, tuple(rows.line[forced].tolist()), "", "", rule)


def _without_model(rows: Rows) -> list[Problem]:
    """Rows of libraries that Weft has no model of, told once for each library."""
    columns = (rows.texts[name].tolist() for name in ("system", "notes", "source"))
    rigs = [_rig(*texts) for texts in zip(*columns, strict=True)]
    others = {rig.library for rig in rigs if not rig.modelled}
    return [
        Problem(
            rows.file,
            tuple(line for line, rig in zip(rows.line.tolist(), rigs, strict=True) if rig.library == library),
            "library",
            library,
            "Weft has no model of this library",
        )
        for library in sorted(others)
    ]


def _by_gpu(rows: Rows) -> Iterator[tuple[Gpu, Rows]]:
    gpus: dict[str, Gpu] = {}
    of = np.empty(len(rows), dtype=np.object_)
    for case in cases_of(rows):
        gpus.setdefault(case.gpu.name, case.gpu)
        of[case.positions] = case.gpu.name
    for name, gpu in gpus.items():
        yield gpu, rows.take(of == name)


def _believable(rows: Rows, gpu: Gpu, profile: Profile) -> tuple[Rows, list[Problem]]:
    wrong = list(_unpredictable(rows, profile))
    rows = rows.take(left_out(wrong, rows.line))
    floor, expected = np.empty(len(rows)), np.empty(len(rows))
    link = max(gpu.link.bandwidth, gpu.host.bandwidth)
    size = rows.numbers["bytes"]
    for case in cases_of(rows):
        of = case.positions
        reduces = case.system.node is not None and case.system.node.switch_reduces
        floor[of] = collective_floor(case.collective, np.full(len(of), float(case.ranks)), size[of], link, reduces)
        expected[of] = case.seconds(size[of], profile)
    impossible = beyond_physics(rows, floor, expected, gpu.name)
    return rows.take(left_out(impossible, rows.line)), [*wrong, *impossible]


def _unpredictable(rows: Rows, profile: Profile) -> Iterator[Problem]:
    """Cases that the model refuses, such as ranks that no algorithm serves."""
    for case in cases_of(rows):
        try:
            case.seconds(rows.numbers["bytes"][case.positions], profile)
        except InputError as error:
            lines = tuple(rows.line[case.positions].tolist())
            yield Problem(rows.file, lines, "collective", case.collective, str(error))
