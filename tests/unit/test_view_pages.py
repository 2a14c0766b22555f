"""Pages: self-contained, complete, and written whole or not at all."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import weft
from weft.core.errors import OutputError
from weft.models import SubLayer
from weft.models.parallel import split
from weft.papers import STUDIES, study
from weft.papers.headline_table import amount, gap
from weft.papers.t3 import T3Study, published_means, telling_case
from weft.simulate.result import Comparison, Timeline
from weft.view.page import explanations, write_report
from weft.view.words import percent


@functools.cache
def small() -> Comparison:
    return weft.compare(split(SubLayer.custom(1024, 1024, 512), 4), "t3-paper")


@dataclass(frozen=True)
class Row:
    id: str
    what: str
    published: float
    weft: float
    unit: str

    @property
    def difference(self) -> float:
        return self.weft - self.published


class SmallStudy(T3Study):
    notes = ("what must be known",)

    def headline(self) -> Sequence[Row]:
        return [
            Row("t3_mca.speedup.geomean", "T3-MCA <speedup>", 1.30, 1.26, "ratio"),
            Row("large.t3_mca.speedup.geomean", "large models", 1.29, 1.31, "ratio"),
            Row("traffic.total.geomean", "DRAM traffic", -0.22, -0.225, "fraction"),
        ]


def small_study() -> SmallStudy:
    comparisons = {("m", 4, "op"): labelled("m", "op", 4), ("l", 32, "fc2"): labelled("l", "fc2", 32)}
    return SmallStudy(comparisons, machine=weft.gpu("t3-paper"), request_bytes=512, wall_s=1.0)


def labelled(model: str, sublayer: str, tp: int) -> Comparison:
    def label(run: Timeline) -> Timeline:
        labels = {"model": model, "sublayer": sublayer}
        return replace(run, graph=replace(run.graph, ranks=tp, labels=labels))

    return Comparison({name: label(run) for name, run in small().timelines.items()})


class Balanced(HTMLParser):
    """Fails unless every tag that must be closed is."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: str) -> str:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert all(link.startswith(("#", "data:")) for link in parser.links), "the page must need nothing but itself"
    written = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"url\((?!#)", written)
    return written


def test_a_study_page_is_self_contained_and_has_table_pictures_and_machine(tmp_path: Path) -> None:
    path = small_study().page(tmp_path / "new")
    page = checked(path.read_text())
    assert path == tmp_path / "new" / "report.html"
    assert page.count("<figure") == 5
    for part in ("1.30x", "1.260x", "-0.040", "-22.5%", "-0.5 pp", "plausible range", "memory.bandwidth"):
        assert part in page
    assert "T3-MCA &lt;speedup&gt;" in page


def test_a_study_page_says_what_stands_for_the_links(tmp_path: Path) -> None:
    study = small_study()
    noted = {
        key: Comparison({name: on_rails(run, number) for name, run in case.timelines.items()})
        for number, (key, case) in enumerate(study.comparisons.items())
    }
    page = replace(study, comparisons=noted).page(tmp_path).read_text()
    assert [page.count(f"Link: ring of {gpus} GPUs through") for gpus in (16, 32)] == [1, 1]


def on_rails(run: Timeline, number: int) -> Timeline:
    """The run on GPUs whose ring goes through several nodes."""
    return replace(run, system=weft.system("dgx-h100", gpus=16 * (number + 1)))


def test_a_run_page_is_self_contained_and_counts_what_blocks_counted(tmp_path: Path) -> None:
    page = checked(small().save(tmp_path / "report.html").read_text())
    for part in ("DRAM: rows opened", "ideal-overlap", "speedup", "What do workgroups wait for?"):
        assert part in page


def test_one_run_without_a_baseline_has_a_page_that_says_how_to_get_one(tmp_path: Path) -> None:
    page = checked(small()["t3"].save(tmp_path / "report.html").read_text())
    assert "speedup" not in page
    assert "add --compare sequential" in page


def test_the_first_line_of_a_page_names_hardware_that_cannot_be_bought(tmp_path: Path) -> None:
    lead = re.compile(r'<p class="lead">([^<]*)</p>')
    first = {
        name: lead.findall(small()[name].save(tmp_path / "report.html").read_text())[0] for name in ("sequential", "t3")
    }
    assert first["t3"].startswith("Hypothetical hardware, on no GPU that can be bought: a tracker")
    assert "Hypothetical" not in first["sequential"]
    assert lead.findall(small_study().page(tmp_path).read_text())[0].startswith("No GPU has a tracker")


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_of_every_study_is_explained(name: str) -> None:
    assert not any("Nothing explains" in sentence for sentence in explanations(study(name).DECLARED.explained[1]))


def test_a_page_without_an_explanation_says_so() -> None:
    assert "Nothing explains 'new-study'" in explanations("new-study")[0]


def test_a_page_does_not_change_between_writings(tmp_path: Path) -> None:
    first, second = (small()["t3"].save(tmp_path / name / "report.html").read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError, match="it is a file"):
        write_report(small().report(), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_published_means_are_found_by_their_ids() -> None:
    rows = small_study().headline()
    assert published_means(rows) == {"t3-mca": 1.30}
    assert published_means(rows, "large.") == {"t3-mca": 1.29}


def test_the_case_that_tells_is_a_mid_size_fc2_where_arbitration_gains_most() -> None:
    cases = [labelled("m", "op", 8), labelled("m", "fc2", 8), labelled("l", "fc2", 32)]
    assert telling_case(cases) is cases[1]


def test_headline_figures_are_written_in_their_units() -> None:
    assert amount(1.3, "ratio") == "1.30x"
    assert amount(-0.22, "fraction") == "-22%"
    assert amount(0.091, "fraction") == "+9.1%"
    assert amount((-0.1, 0.0), "fraction") == "-10% to +0%"
    assert gap(-0.005, "fraction") == "-0.5 pp"
    assert gap(0.04, "ratio") == "+0.040"


def test_results_show_themselves_as_tables_in_a_notebook() -> None:
    page = checked(small()._repr_html_())
    assert page.count("<tr>") == 1 + len(small())
    assert "RS updates near memory" in checked(small()["t3"]._repr_html_())


def test_a_custom_sub_layer_is_named_once() -> None:
    assert ">custom, TP 4:" in small()._repr_html_()


def test_a_share_is_a_whole_percent_and_never_minus_nothing() -> None:
    assert [percent(share) for share in (0.386, -0.12, -0.004, None)] == ["39%", "-12%", "0%", "–"]
