"""Functional models: are the operations between their layers row by row?

Every tensor of such a model leads with the rows (that holds for its inputs, and layers keep it), so an operation is fine
if it leaves the first axis where it is and combines nothing along it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfdpbc.gradients.onepass import rowwise

_ELEMENTWISE = rowwise.words(
    """
    Abs Absolute Add Arctan Cast Ceil Celu Clip Cos Cosh Divide DivideNoNan Elu Equal Erf Exp Expm1 Floor Gelu Greater
    GreaterEqual HardSigmoid HardSilu HardTanh HardShrink LeakyRelu Less LessEqual Log Log1p LogSigmoid LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Multiply Negative NotEqual OnesLike Power Reciprocal Relu Relu6 Round Rsqrt Selu
    Sigmoid Sign Silu Sin Sinh SoftShrink Softplus Softsign Sqrt Square Squareplus StopGradient Subtract Tan Tanh
    TanhShrink Threshold TrueDivide Where ZerosLike
"""
)
_ALONG_AXIS = rowwise.words(
    """
    All Amax Amin Any Argmax Argmin Argsort Concatenate Cumprod Cumsum ExpandDims Flip Glu LogSoftmax Logsumexp Max Mean
    Median Min Norm OneHot Prod Repeat Roll Softmax Sort Sparsemax Squeeze Stack Std Sum Var
"""
)


# What a subclass of Sequential or Functional may define anew: none of it takes part in a forward pass.
_OUTSIDE_THE_PASS = frozenset(
    rowwise.words(
        """
    __annotations__ __dict__ __doc__ __firstlineno__ __init__ __init_subclass__ __module__ __new__ __qualname__ __repr__
    __setattr__ __static_attributes__ __str__ __weakref__ _api_export_path _api_export_symbol_id build_from_config compile
    compile_from_config compute_loss compute_metrics count_params evaluate export fit from_config get_build_config
    get_compile_config get_config get_layer load_own_variables load_weights make_predict_function make_test_function
    make_train_function predict predict_on_batch predict_step reset_metrics save save_own_variables save_weights summary
    test_on_batch test_step to_json train_on_batch train_step
"""
    )
)


def _kind(thing: Any) -> str:
    """The class name of something of Keras's own, else an empty string."""
    return type(thing).__name__ if _is_keras(type(thing)) else ""


def _is_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "keras"


def _graph_class(layer: Any) -> type | None:
    """The class Sequential or Functional that a model is of, or that its class extends."""
    known = [c for c in type(layer).__mro__ if _is_keras(c) and c.__name__ in ("Sequential", "Functional")]
    return known[0] if known and isinstance(layer, keras.Model) else None


def overridden(layer: Any) -> list[str]:
    """What the class of a model with a graph redefines, so that its forward pass may be another than its graph."""
    base = _graph_class(layer)
    if base is None or type(layer) is base:
        return []
    names = {name for c in type(layer).__mro__ if not _is_keras(c) and c is not object for name in vars(c)}
    names = {name for name in names - _OUTSIDE_THE_PASS if hasattr(base, name) or name == "__getattr__"}
    missing = object()
    return sorted(
        name
        for name in names
        if inspect.getattr_static(type(layer), name) is not inspect.getattr_static(base, name, missing)
    )


def is_graph(layer: Any) -> bool:
    """Whether the call of a model is the graph of its layers.

    So it is for Keras's Sequential and Functional, and for subclasses built by ``super().__init__(inputs, outputs)`` that
    keep all of the forward pass.
    """
    return _graph_class(layer) is not None and not overridden(layer)


def reasons(model: Any) -> list[str]:
    """The operations of a model with a graph that may mix rows, and inputs that are no dense batch of any size."""
    found = []
    for t in model.inputs:
        if len(t.shape) == 0 or t.shape[0] is not None:
            found.append(f"input {t.name!r} has the fixed batch size {t.shape[0] if t.shape else None}")
        # Not looked for inside: Keras calls a product with a constant sparse, and no layer known to be rowwise gives one.
        kind = "sparse" if getattr(t, "sparse", False) else "ragged" if getattr(t, "ragged", False) else None
        if kind is not None:
            found.append(f"input {t.name!r} is {kind}")
    functional = getattr(model, "_functional", None) or model  # what a Sequential model is made of
    by_depth = getattr(functional, "_nodes_by_depth", {})
    for node in (node for nodes in by_depth.values() for node in nodes):
        if node.is_input:
            continue
        operation = node.operation
        if any(len(t.shape) < 2 for t in node.output_tensors):
            # Its last axis is the rows: what works along the last axis (softmax, unit normalisation) would mix them.
            found.append(f"{operation.name!r} gives a tensor of rank 1, whose last axis is the rows")
            continue
        if isinstance(operation, keras.layers.Layer) or rowwise.is_rowwise_layer(operation):
            if _mask_of_rank_2(operation, node.arguments):
                # Keras puts axes before those of such a mask: its rows would meet the queries.
                found.append(f"{operation.name!r} has an attention_mask of rank 2: give it as [rows, queries, keys]")
            continue
        tensors = node.arguments.keras_tensors
        args = [*node.arguments.args, *node.arguments.kwargs.values()]
        check = _CHECKS.get(_kind(operation))
        if check is None or not tensors or not check(operation, args, tensors):
            found.append(f"operation {operation.name!r} ({type(operation).__name__}) may mix rows")
    return found


def _mask_of_rank_2(layer: Any, arguments: Any) -> bool:
    """Whether an attention layer is called with a mask ``[rows, keys]``, which Keras reads as ``[queries, keys]``."""
    if not isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        return False
    bound = inspect.signature(type(layer).call).bind_partial(layer, *arguments.args, **arguments.kwargs).arguments
    mask = bound.get("attention_mask")
    return isinstance(mask, keras.KerasTensor) and _rank(mask) < 3


def _rank(t: Any) -> int:
    return len(t.shape)


def _elementwise(operation: Any, args: Any, tensors: list[Any]) -> bool:
    """Operands of one rank; constants may not reach the first axis."""
    rank = _rank(tensors[0])
    if rank == 0 or any(_rank(t) != rank for t in tensors):
        return False  # broadcasting aligns last axes: the rows of the smaller one would meet another axis
    constants = [a for a in args if not (a is None or isinstance(a, (str, keras.KerasTensor)))]
    return all(np.ndim(c) < rank or (np.ndim(c) == rank and np.shape(c)[0] == 1) for c in constants)


def _along_axis(operation: Any, args: Any, tensors: list[Any]) -> bool:
    """An axis is given and it is not the first."""
    axis = getattr(operation, "axis", None)
    axes = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    # Stack and ExpandDims count axes of their result, which has one more.
    rank = _rank(tensors[0]) + (_kind(operation) in ("Stack", "ExpandDims", "OneHot"))
    same_rank = all(_rank(t) == _rank(tensors[0]) for t in tensors)
    return same_rank and all(isinstance(a, int) and a % rank != 0 for a in axes)


def _reshape(operation: Any, args: Any, tensors: list[Any]) -> bool:
    inner, shape = tensors[0].shape[1:], tuple(operation.newshape)
    known = all(isinstance(n, int) for n in (*inner, *shape)) and None not in shape
    return known and shape[0] == -1 and math.prod(inner) == math.prod(shape[1:])


def _transpose(operation: Any, args: Any, tensors: list[Any]) -> bool:
    return operation.axes is not None and operation.axes[0] % _rank(tensors[0]) == 0


def _matmul(operation: Any, args: Any, tensors: list[Any]) -> bool:
    if len(tensors) == 2:
        return _rank(tensors[0]) == _rank(tensors[1]) >= 3
    return isinstance(args[0], keras.KerasTensor) and np.ndim(args[1]) == 2


def _get_item(operation: Any, args: Any, tensors: list[Any]) -> bool:
    key = args[1] if len(args) > 1 else None
    return isinstance(key, (tuple, list)) and len(key) > 0 and isinstance(key[0], slice) and key[0] == slice(None)


_CHECKS: dict[str, Callable[[Any, Any, list[Any]], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Matmul": _matmul,
    "GetItem": _get_item,
}
