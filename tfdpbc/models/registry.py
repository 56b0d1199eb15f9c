"""Models by name, for the command line and for configuration files."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from tfdpbc.models.convnet import convnet
from tfdpbc.models.lenet import bn_lenet5
from tfdpbc.models.mlp import mlp
from tfdpbc.models.resnet import resnet18
from tfdpbc.models.scattering import scattering_cnn, scattering_linear
from tfdpbc.models.tutorial import tutorial_cnn

if TYPE_CHECKING:
    import keras

_FUNCTIONS = (convnet, bn_lenet5, resnet18, tutorial_cnn, mlp, scattering_linear, scattering_cnn)
_MODELS = {function.__name__: function for function in _FUNCTIONS}


def names() -> list[str]:
    """The names `build` knows, sorted. Imports nothing heavy."""
    return sorted(_MODELS)


def build(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> keras.Model:
    """Builds a model by name.

    Args:
      name: one of `names()`; hyphens count as underscores.
      input_shape: shape of one example, for images (height, width, channels).
      num_classes: number of classes, >= 2.
      **options: passed on, see the function of that name.

    Raises:
      ValueError: unknown name (says which are close), or an input too small for the model.
      TypeError: an option the model does not have.
    """
    key = name.replace("-", "_").lower() if isinstance(name, str) else name
    if key not in _MODELS:
        close = difflib.get_close_matches(str(key), _MODELS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"model must be one of {', '.join(map(repr, names()))}; got model={name!r}{hint}")
    return _MODELS[key](input_shape, num_classes, **options)
