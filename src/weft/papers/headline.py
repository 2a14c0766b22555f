"""The base of all studies: the declaration file of a paper's study, and published figures against Weft's."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from weft import hardware
from weft.core.answer import Answer
from weft.core.catalog import Part, read_toml
from weft.core.errors import UnknownNameError
from weft.core.options import SUSTAINED, RunOptions
from weft.core.report import Part as PagePart
from weft.core.report.table import Table
from weft.core.store import Store
from weft.hardware import Gpu
from weft.overlaps.lower.machine import default_request_bytes
from weft.papers.page import StudyReport, as_sentences
from weft.sweep.simulations import Bench, Jobs
from weft.sweep.tasks import Progress
from weft.view.page import write_report

if TYPE_CHECKING:
    from weft.plan.tune.perturb import Sensitivity

Published = float | tuple[float, float]
"""A published figure, or the low and high end of a published range."""


@dataclass(frozen=True)
class HeadlineRow:
    """Weft's figure and the published one or range, both in `unit`; None if none is published for the machine.

    `unit` is "ratio", "fraction" (a change, shown with its sign), "share" (of a whole), or what is counted ("CUs").
    """

    id: str
    what: str
    published: Published | None
    weft: float
    unit: str

    @property
    def difference(self) -> float | None:
        """Weft's figure minus the published one, or its distance from the range; None without one."""
        if self.published is None:
            return None
        low, high = self.published if isinstance(self.published, tuple) else (self.published, self.published)
        return self.weft - min(max(self.weft, low), high)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {**asdict(self), "difference": self.difference}


class StudyFigure(NamedTuple):
    """Weft's value for the claim `id`; `words` fill the placeholders of its text, `part` says how many cases were run.

    If no claim of that id is declared, text and unit are those of the claim `like`. With `always` the published figure
    holds on any machine.
    """

    id: str
    value: float
    words: Mapping[str, Any] = {}
    part: str = ""
    like: str = ""
    always: bool = False


class Claim(Part):
    """A figure that a study's file declares; t3.toml documents the fields."""

    id: str
    what: str = ""
    covers: str = ""
    unit: str = "ratio"
    published: Published | None = None
    source: str = ""
    cases: str = ""
    bar: float | None = None
    around: float | None = None
    miss: float | None = None
    cause: str = ""

    def row(self, figure: StudyFigure, comparable: bool) -> HeadlineRow:
        """Return the headline row, with the published figure if it applies to what was run (`comparable`)."""
        words = f"{self.what.format(**figure.words)}{', ' * bool(self.covers)}{self.covers}{figure.part}"
        published = self.published if comparable or figure.always else None
        return HeadlineRow(figure.id, words, published, figure.value, self.unit)


class StudyDeclaration(Part):
    """The declaration of a study: its name, its paper (`called`, citation), and the GPU of the published figures.

    `asks` is its question, `takes` its usual time on two cores, `title` that of its page, `lead` the line below it,
    `work` how it is simulated, `notes` how to read its figures, and `hypothetical` the hardware in it that no GPU on
    sale has; `summary` lists the claims that the page states first; `about` and `examples` are the command's help,
    `explained` the title and name of its page of the documentation. `against` is the baseline of its figures,
    `elsewhere` how the headline's title begins on other machines, `moved` the title of its sensitivity, and `requests`
    the default size of memory requests, in words.
    """

    name: str
    called: str
    paper: str
    gpu: str
    asks: str
    takes: str
    title: str
    about: str
    explained: tuple[str, str]
    claims: Mapping[str, Claim]
    cases: Mapping[str, Any] = {}
    examples: tuple[str, ...] = ()
    lead: str = ""
    work: str = ""
    notes: tuple[str, ...] = ()
    hypothetical: str = ""
    summary: tuple[str, ...] = ()
    against: str = ""
    moved: str = ""
    elsewhere: str = ""
    requests: str = "as suits the GPU"


def read_declaration(module: str) -> StudyDeclaration:
    """Read the TOML file beside a study's module (its `__file__`).

    Raises ConfigError for an unknown or a missing key.
    """
    file = Path(module).with_suffix(".toml")
    content = read_toml(file)
    rows = content.get("claims", {}).items()
    claims = {id_: Claim.from_table({"id": id_, **row}, f"{file}: claims.{id_}") for id_, row in rows}
    return StudyDeclaration.from_table({**content, "claims": claims}, str(file))


class StudyOption(NamedTuple):
    """A command-line option of one study: its `flag`, the argument of `run` that it sets, and its type."""

    flag: str
    name: str
    takes: Literal["names", "numbers", "splits", "size", "file", "gpus"]
    metavar: str
    help: str


MODELS = StudyOption("--models", "models", "names", "A,B", "Only these models of the study.")
DEGREES = StudyOption("--tp", "tps", "numbers", "8,16", "Only these degrees of tensor parallelism.")
RANKS = StudyOption("--ranks", "ranks", "gpus", "N", "GPUs that the collectives join.  [default: 8]")


@dataclass(frozen=True)
class Conditions:
    """Where and how a study is simulated: the GPU, options of a run, and the processes and their store."""

    gpu: Gpu
    options: RunOptions
    jobs: Jobs

    def bench(self, ranks: int | None = None) -> Bench:
        """Return a bench of `ranks` such GPUs, or of one."""
        return Bench.of(self.gpu, ranks, self.options)


@dataclass(frozen=True, kw_only=True, repr=False)
class PaperStudy(Answer):
    """A paper's study simulated on a machine, with its figures against the published ones.

    `machine` is the GPU, `request_bytes` the size of a memory request [bytes], `wall_s` the wall-clock time of the
    study [s]. A subclass declares the class variables, computes its fields in `simulated`, and implements `figures` and
    `own`; its command, its headline, its page and its JSON follow from these.
    """

    kind = "study"
    DECLARED: ClassVar[StudyDeclaration]
    OPTIONS: ClassVar[Sequence[StudyOption]] = ()
    REPORT: ClassVar[type[StudyReport]] = StudyReport

    machine: Gpu
    request_bytes: int
    wall_s: float

    @classmethod
    def run(cls, *own: Any, **given: Any) -> Self:
        """Simulate the study; its `own` arguments are those of `simulated`, which may be given by name, too.

        By name alone: the `gpu` (the declared one by default), `options` of a run, `jobs`, how many processes simulate
        (2), `progress(done, all, what)`, called at the start and after every run, and the `store`: what it holds is not
        simulated again. A script that asks for more than one job calls this below `if __name__ == "__main__":`.
        """
        begin = time.perf_counter()
        at, more = cls._conditions(**given)
        found = cls.simulated(at, *own, **more)
        request = at.options.request_bytes or default_request_bytes(at.gpu)
        return cls(**found, machine=at.gpu, request_bytes=request, wall_s=time.perf_counter() - begin)

    @classmethod
    def sensitivity(cls, *own: Any, **given: Any) -> Sensitivity:
        """Sensitivity of the figures to the values that they depend on, if `DECLARED.moved`; arguments as of `run`."""
        at, more = cls._conditions(**given)
        return cls.moved(at, *own, **more)

    @classmethod
    def _conditions(
        cls,
        *,
        jobs: int = 2,
        progress: Progress | None = None,
        gpu: Gpu | str | None = None,
        options: RunOptions = SUSTAINED,
        store: Store | None = None,
        **more: Any,
    ) -> tuple[Conditions, dict[str, Any]]:
        """Split the arguments of `run` into the conditions and the study's own arguments."""
        fine = cls.DECLARED.requests
        if fine.isdecimal() and options.request_bytes is None:
            options = replace(options, request_bytes=int(fine))
        return Conditions(hardware.gpu(gpu or cls.DECLARED.gpu), options, Jobs(jobs, store, progress)), more

    @classmethod
    @abstractmethod
    def simulated(cls, at: Conditions, *own: Any, **more: Any) -> dict[str, Any]:
        """Simulate, and return the fields of the study; further arguments are its own options."""

    @classmethod
    def moved(cls, at: Conditions, *own: Any, **more: Any) -> Sensitivity:
        """Return the figures when assumed values move; arguments as of `simulated`."""
        raise NotImplementedError

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.machine.name

    @property
    def where(self) -> str:
        """The GPU's name, and the values that the user changed."""
        return ", ".join((self.gpu, *self.machine.changes))

    @property
    def comparable(self) -> bool:
        """Whether the published figures apply to what was simulated."""
        return self.unlike is None

    @property
    def unlike(self) -> str | None:
        """Why the published figures do not apply, as a note; None if they do."""
        if self.gpu != self.DECLARED.gpu:
            why = f"the published ones are of {self.DECLARED.gpu}, these of {self.gpu}"
        elif self.machine.changes:
            why = f"the machine was changed ({', '.join(self.machine.changes)})"
        else:
            why = self._other_than_published()
        return f"no published figures stand beside these: {why}" if why else None

    def _other_than_published(self) -> str:
        """Further differences from the published setup; empty if there are none."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how to read the figures, such as why no published ones are shown."""
        return (*self.DECLARED.notes, *self.remarks, *(() if self.unlike is None else (self.unlike,)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes that depend on what was found."""
        return ()

    @property
    def hypothetical(self) -> str:
        """Hardware in the simulation that no GPU on sale has, in words; empty if there is none."""
        return self.DECLARED.hypothetical

    @property
    def links(self) -> tuple[str, ...]:
        """A note on what represents the links of the GPUs, if one is needed."""
        return ()

    @property
    def findings(self) -> Sequence[str]:
        """Sentences that the command prints first, and the page after its title; empty if there are none."""
        return ()

    @abstractmethod
    def figures(self) -> Iterable[StudyFigure]:
        """Weft's values of the claims, in the order of the headline; claims that were not run are left out."""

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those apply."""
        return [self._claim(figure).row(figure, self.comparable) for figure in self.figures()]

    def _claim(self, figure: StudyFigure) -> Claim:
        """Return the claim of a figure; if it has no text of its own, with that of the claim `figure.like`."""
        claims = self.DECLARED.claims
        found = [claims[id_] for id_ in (figure.id, figure.like) if id_ in claims]
        if not found:
            raise UnknownNameError(f"claim of the study {self.DECLARED.name}", figure.like or figure.id, claims)
        return found[0].model_copy(update={"what": found[0].what or found[-1].what})

    def tables(self) -> list[Table]:
        """Tables that the command prints above the headline."""
        return []

    @property
    def elsewhere(self) -> str:
        """The headline's title on machines for which nothing is published."""
        return f"{self.DECLARED.elsewhere} on {self.where}" if self.DECLARED.elsewhere else f"Figures for {self.gpu}"

    @abstractmethod
    def own(self) -> dict[str, Any]:
        """Results of this study alone, as plain data."""

    @property
    def lead(self) -> str:
        """The line below the page's title: what was run, and where."""
        return self.DECLARED.lead

    @property
    def title(self) -> str:
        """The title of its page."""
        return self.DECLARED.title

    @property
    def summary(self) -> Sequence[str]:
        """The first sentences of its page."""
        return [*self.findings, *as_sentences(self.headline(), self.DECLARED.summary)]

    @property
    def work(self) -> PagePart:
        """How much was simulated, in words."""
        return self.DECLARED.work or ()

    def bench(self, ranks: int | None = None) -> Bench:
        """Return a bench of `ranks` of its GPUs, to simulate a case again with full timelines."""
        return Bench.of(self.machine, ranks, RunOptions(request_bytes=self.request_bytes))

    def watch(self, progress: Progress | None = None) -> Any:
        """Runs that the page shows over time, simulated again with full timelines; None for nothing."""
        return None

    def sections(self, watched: Any = None) -> list[PagePart]:
        """Return the study's own sections of the page; `watched` is the result of `watch`, if it is to be shown."""
        return []

    def page(self, folder: str | Path, watched: Any = None) -> Path:
        """Write `report.html` to a folder and return its path; OutputError if it cannot be written."""
        return write_report(self.REPORT(self, watched), folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the study as plain data: conditions, notes, headline, and its own results."""
        return {
            "study": self.DECLARED.name,
            "published": self.DECLARED.paper,
            "gpu": self.gpu,
            "changed": list(self.machine.changes),
            "notes": list(self.notes),
            "request_bytes": self.request_bytes,
            "wall_s": self.wall_s,
            "headline": [row.as_json() for row in self.headline()],
            **self.own(),
        }
