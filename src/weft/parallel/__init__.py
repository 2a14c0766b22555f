"""A graph split over GPUs: tensor parallelism."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
    from weft.parallel.inference import layer as layer
    from weft.parallel.named import work_of as work_of
    from weft.parallel.tensor import dependent as dependent
    from weft.parallel.tensor import legal_degrees as legal_degrees
    from weft.parallel.tensor import share_of as share_of
    from weft.parallel.tensor import split as split
    from weft.parallel.tensor import sublayer as sublayer

__getattr__, __all__ = lazy_names(
    __name__,
    inference="layer",
    named="work_of",
    tensor="dependent legal_degrees share_of split sublayer",
)
