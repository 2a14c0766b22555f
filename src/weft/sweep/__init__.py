"""Many questions: every combination of their values, on processes or a cluster, each kept on disk."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A callable module: `weft.sweep` is both the package and its main function."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        from weft.sweep.run import sweep

        return sweep(*args, **named)


sys.modules[__name__].__class__ = _Room
