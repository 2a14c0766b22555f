"""Models, their sub-layers, and the GEMMs inside them."""

from weft.models.load import graph_in, load_model, model_names
from weft.models.sublayer import SUBLAYERS, SubLayer, SubLayerKind, sublayer
from weft.models.transformer import Transformer
from weft.rooms import callable_room

__all__ = ["SUBLAYERS", "SubLayer", "SubLayerKind", "Transformer", "graph_in", "load_model", "model_names", "sublayer"]

callable_room(__name__, "weft.models.load", "model_names")
