"""Names of work: sub-layers, such as "t-nlg/fc2", split over several GPUs."""

from __future__ import annotations

from typing import TypeVar

from weft.core.errors import InputError, check_type, show_value
from weft.graph import Graph, Op

W = TypeVar("W")


def work_of(work: W | str, tp: int | None = None, dtype: str | None = None) -> W | Graph:
    """Resolve a text like "t-nlg/fc2" to that sub-layer, split over `tp` GPUs; other work is returned unchanged.

    The part before the last slash is a model's name or TOML file; `dtype` is the model's own unless given. Raises
    InputError for a text without tp, and for tp or dtype with work that is no text, and what `sublayer` raises.
    """
    if isinstance(work, str):
        if "/" not in work:
            raise InputError(f"the work is {show_value(work)}; name a model and its sub-layer, like 't-nlg/fc2'")
        if tp is None:
            raise InputError(f"tp is missing: '{work}' is split over several GPUs; say over how many, like tp=8")
        from weft.models.parallel.tensor import sublayer  # models are imported where one is named

        return sublayer(work, tp=tp, dtype=dtype)
    for argument, value in (("tp", tp), ("dtype", dtype)):
        if value is not None:
            check_type("the work", work, (Graph, Op), "name it, like 't-nlg/fc2', or give a graph")
            raise InputError(
                f"{argument} is given twice: {show_value(value)}, and by the work itself; leave it out, or name the "
                "work, "
                "like 't-nlg/fc2'"
            )
    return work
