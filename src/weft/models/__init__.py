"""Transformers and their sub-layers: operators, parameters and FLOPs; `parallel` splits them over GPUs."""

from weft.core.callables import make_callable
from weft.models.load import graph_in, load_model, model_names
from weft.models.sublayer import SUBLAYERS, SubLayer, SubLayerKind, sublayer
from weft.models.transformer import Transformer

__all__ = ["SUBLAYERS", "SubLayer", "SubLayerKind", "Transformer", "graph_in", "load_model", "model_names", "sublayer"]

make_callable(__name__, "weft.models.load", "model_names")
