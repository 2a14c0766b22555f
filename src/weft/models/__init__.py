"""Models, their sub-layers, and the GEMMs inside them."""

from weft.core.rooms import callable_room
from weft.models.load import graph_in, load_model, model_names
from weft.models.sublayer import SUBLAYERS, SubLayer, SubLayerKind, sublayer
from weft.models.transformer import Transformer

__all__ = ["SUBLAYERS", "SubLayer", "SubLayerKind", "Transformer", "graph_in", "load_model", "model_names", "sublayer"]

callable_room(__name__, "weft.models.load", "model_names")
