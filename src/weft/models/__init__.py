"""What must be computed: models, their sub-layers, and the GEMMs inside them."""

from weft.models.sublayer import SUBLAYERS, SubLayer, SubLayerKind, sublayer
from weft.models.transformer import Transformer, load_model, model_names

__all__ = [
    "SUBLAYERS",
    "SubLayer",
    "SubLayerKind",
    "Transformer",
    "load_model",
    "model_names",
    "sublayer",
]
