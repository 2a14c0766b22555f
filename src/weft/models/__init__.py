"""What must be computed: models, their sub-layers, and the GEMMs inside them."""

import sys
from types import ModuleType

from weft.models.transformer import SUBLAYERS, SubLayer, SubLayerKind, Transformer, load_model, model_names, sublayer

__all__ = ["SUBLAYERS", "SubLayer", "SubLayerKind", "Transformer", "load_model", "model_names", "sublayer"]


class _Room(ModuleType):
    """This module, which may be called: `weft.models()` lists the models that the room offers by name."""

    def __call__(self) -> list[str]:
        return model_names()


sys.modules[__name__].__class__ = _Room
