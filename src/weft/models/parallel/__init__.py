"""What each rank of a deployment computes, sends and stores, and what training frameworks do by default."""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names

if TYPE_CHECKING:
    from weft.models.parallel.inference import layer as layer
    from weft.models.parallel.tensor import dependent as dependent
    from weft.models.parallel.tensor import legal_degrees as legal_degrees
    from weft.models.parallel.tensor import share_of as share_of
    from weft.models.parallel.tensor import split as split
    from weft.models.parallel.tensor import sublayer as sublayer
    from weft.models.parallel.work import work_of as work_of

__getattr__, __all__ = lazy_names(
    __name__,
    inference="layer",
    work="work_of",
    tensor="dependent legal_degrees share_of split sublayer",
)
