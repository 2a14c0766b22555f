"""How work is split over GPUs: tensor parallelism."""

from weft.parallel.tensor import ShardedSubLayer, legal_degrees, split, sublayer

__all__ = ["ShardedSubLayer", "legal_degrees", "split", "sublayer"]
