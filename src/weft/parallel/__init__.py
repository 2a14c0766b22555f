"""A graph split over GPUs: tensor parallelism."""

from weft.parallel.inference import layer
from weft.parallel.named import work_of
from weft.parallel.tensor import dependent, legal_degrees, share_of, split, sublayer

__all__ = ["dependent", "layer", "legal_degrees", "share_of", "split", "sublayer", "work_of"]
