"""What is known to treat each row (index of the first axis) on its own.

One backward pass over many contributions gives each its own gradient only if no row's result depends on another row; the
guarantee rests on it. So what is not listed here, by its exact type, is not computed by this engine. Users who know that
a layer, model, activation or loss of theirs treats rows on their own say so with `rowwise`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.models.scattering_layer import Scattering2D


def words(text: str) -> list[str]:
    """The names in a block of text."""
    return text.split()


_ALWAYS = words(
    """
    Activation Add AlphaDropout Average AveragePooling1D AveragePooling2D AveragePooling3D CenterCrop Cropping1D Cropping2D
    Cropping3D Dropout ELU Flatten GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D Identity InputLayer LeakyReLU Masking
    MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum Multiply Normalization Permute ReLU RepeatVector Rescaling
    Reshape Resizing SpatialDropout1D SpatialDropout2D SpatialDropout3D Subtract UpSampling1D UpSampling2D UpSampling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveMaxPooling1D
    AdaptiveMaxPooling2D
"""
)

# Layers whose `axis` (or `axes`) may not be the first one.
_ALONG_AXIS = ("Concatenate", "Dot", "Softmax", "UnitNormalization")

# Composite layers: what they compute between their sublayers.
_COMPOSITE = words(
    "Attention AdditiveAttention Bidirectional MultiHeadAttention GroupedQueryAttention GroupQueryAttention"
)

_ACTIVATIONS = words(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid
    sparsemax squareplus swish tanh tanh_shrink threshold
"""
)

_LOSSES = words(
    """
    BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge
    CosineSimilarity Hinge Huber KLDivergence LogCosh MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
    MeanSquaredLogarithmicError Poisson SparseCategoricalCrossentropy SquaredHinge
"""
)

_LOSS_FUNCTIONS = words(
    """
    binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
    categorical_hinge cosine_similarity hinge huber kl_divergence log_cosh mean_absolute_error
    mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
    sparse_categorical_crossentropy squared_hinge
"""
)


def _named(module: Any, names: list[str] | tuple[str, ...]) -> list[Any]:
    """Those of the names that this Keras has."""
    return [getattr(module, name) for name in names if hasattr(module, name)]


_LAYERS: dict[type, Callable[[Any], bool]] = {t: lambda layer: True for t in _named(keras.layers, _ALWAYS)}
_COMPOSITES = _named(keras.layers, _COMPOSITE)
_LAYERS[Scattering2D] = lambda layer: True
_FUNCTIONS: list[Any] = [
    *_named(keras.activations, _ACTIVATIONS),
    *(getattr(tf.nn, n) for n in ("relu", "relu6", "elu", "selu", "gelu", "silu", "swish", "leaky_relu", "tanh")),
    *(tf.nn.sigmoid, tf.nn.softplus, tf.nn.softsign, tf.nn.softmax, tf.identity, tf.sin),
]
_LOSS_TYPES = set(_named(keras.losses, _LOSSES))
_LOSS_CALLS: list[Any] = _named(keras.losses, _LOSS_FUNCTIONS)


def _not_the_first_axis(layer: Any) -> bool:
    axes = layer.axes if hasattr(layer, "axes") else layer.axis
    return all(_inner_axis(axis) for axis in (axes if isinstance(axes, (list, tuple)) else [axes]))


def _inner_axis(axis: Any) -> bool:
    # The rank is not known here; of the negative axes only the last is surely not the first.
    return isinstance(axis, int) and (axis > 0 or axis == -1)


_LAYERS.update(dict.fromkeys(_named(keras.layers, _ALONG_AXIS), _not_the_first_axis))


def _attends_within_rows(layer: Any) -> bool:
    """Negative axes count from the end of a rank that is not known here."""
    axes = getattr(layer, "_attention_axes", None) or ()
    return all(axis > 0 for axis in (axes if isinstance(axes, (list, tuple)) else [axes]))


_LAYERS.update(dict.fromkeys(_COMPOSITES, _attends_within_rows))


def rowwise(thing: Any) -> Any:
    """Declares that a layer class, model class, activation function or loss treats each row on its own.

    Row i of its result may depend on row i of its inputs and on weights, and on nothing else: the guarantee of individual
    clipping rests on this promise. Usable as a decorator; applies to exactly this class (not its subclasses) or function.
    """
    if isinstance(thing, type) and issubclass(thing, keras.losses.Loss):
        _LOSS_TYPES.add(thing)
    elif isinstance(thing, type):
        _LAYERS[thing] = lambda layer: True
    elif callable(thing):
        _FUNCTIONS.append(thing)
        _LOSS_CALLS.append(thing)
    else:
        raise TypeError(f"rowwise takes a class or a function; got {thing!r}")
    return thing


def is_rowwise_layer(layer: Any) -> bool:
    """Whether the layer's own computation (not that of its sublayers) is known to treat rows on their own."""
    check = _LAYERS.get(type(layer))
    return check is not None and check(layer)


def is_rowwise_function(function: Any) -> bool:
    """Whether an activation function (or a layer used as one) is known to treat rows on their own."""
    if function is None or any(function is known for known in _FUNCTIONS):
        return True
    return isinstance(function, keras.layers.Layer) and is_rowwise_layer(function)


def is_rowwise_loss(loss: Any) -> bool:
    """Whether a loss (as given to `compile`) is known to treat rows on their own."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if any(loss is known for known in _LOSS_CALLS):
        return True
    # An axis that counts from the front could be the rows' axis; the built-in default is the last one.
    options = getattr(loss, "_fn_kwargs", {})
    return type(loss) in _LOSS_TYPES and options.get("axis", -1) == -1 and getattr(loss, "axis", -1) == -1
