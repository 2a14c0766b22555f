"""What must be computed: models, their sub-layers, and the GEMMs inside them."""

from weft.models.transformer import SUBLAYERS, SubLayer, SubLayerKind, Transformer, load_model, model_names, sublayer

__all__ = [
    "SUBLAYERS",
    "SubLayer",
    "SubLayerKind",
    "Transformer",
    "load_model",
    "model_names",
    "sublayer",
]
