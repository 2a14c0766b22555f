"""What `weft.rewrite` registers: graphs with fused and rewritten operators."""

from weft.core.extensions import Extension

EXTENSION = Extension(
    "rewrite",
    names={"rewrite": "weft.rewrite:"},
    commands={
        "Kernels, and sharing a GPU": {
            "rewrite": ("weft.rewrite.command:rewrite", "Fuse and rewrite the operators of a layer or a graph."),
        },
    },
    reports={"rewriting": "weft.rewrite.page:RewritingReport"},
)
