"""Models, their sub-layers, and the GEMMs inside them."""

import sys
from types import ModuleType

from weft.models.load import graph_in, load_model, model_names
from weft.models.sublayer import SUBLAYERS, SubLayer, SubLayerKind, sublayer
from weft.models.transformer import Transformer

__all__ = ["SUBLAYERS", "SubLayer", "SubLayerKind", "Transformer", "graph_in", "load_model", "model_names", "sublayer"]


class _Room(ModuleType):
    """A callable module: `weft.models()` lists the models of the catalogue by name."""

    def __call__(self) -> list[str]:
        return model_names()


sys.modules[__name__].__class__ = _Room
