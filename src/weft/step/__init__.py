"""Whole steps: a model under a plan on a machine, timed operator by operator, layer by layer, stage by stage.

`weft.step(...)` calls `named.step`; start reading with `clock.train`. A step is composed in `batch`, for one plan or
many, from the durations of `prices` by the keys of `keys`; `forward` and `inference` time prefill and decode,
`pipeline` has the pipeline schedules, `result` the answers.
"""

from weft.core.callables import make_callable

make_callable(__name__, "weft.step.queries", "step")
