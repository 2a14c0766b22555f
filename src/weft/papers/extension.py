"""What `weft.papers` registers: studies of papers, and sampled iterations."""

from weft.core.extensions import Extension

EXTENSION = Extension(
    "papers",
    names={"papers": "weft.papers:", "sample": "weft.papers.sample:sample"},
    commands={
        "Train a model": {
            "sample": ("weft.papers.sample.command:sample", "Choose iterations that stand for all, and total them."),
        },
        "Hardware studies": {
            "study": ("weft.papers.command:study", "Repeat a paper's study and compare its figures."),
        },
    },
    reports={
        "study": "weft.papers.page:StudyReport",
        "sample": "weft.papers.sample.page:SampleReport",
    },
)
