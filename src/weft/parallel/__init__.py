"""A graph split over GPUs: tensor parallelism."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
    from weft.parallel.inference import layer
    from weft.parallel.named import work_of
    from weft.parallel.tensor import dependent, legal_degrees, share_of, split, sublayer

__all__ = ["dependent", "layer", "legal_degrees", "share_of", "split", "sublayer", "work_of"]

__getattr__ = lazy_names(
    __name__,
    {
        "layer": "inference",
        "work_of": "named",
        "dependent": "tensor",
        "legal_degrees": "tensor",
        "share_of": "tensor",
        "split": "tensor",
        "sublayer": "tensor",
    },
)
