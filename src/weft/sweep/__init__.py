"""Many questions: every combination of their values, on processes or a cluster, each kept on disk."""

from weft.core.rooms import callable_room

callable_room(__name__, "weft.sweep.run", "sweep")
