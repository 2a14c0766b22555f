"""Many queries: every combination of values, on processes or a cluster, each result cached on disk."""

from weft.core.callables import make_callable

make_callable(__name__, "weft.sweep.run", "sweep")
