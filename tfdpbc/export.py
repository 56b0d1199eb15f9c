"""A trained model as a SavedModel with its guarantee inside, and back.

What is written needs TensorFlow alone, neither this package nor Keras::

    loaded = tf.saved_model.load(path)
    loaded.serve(x)                                             # the model's outputs, in their own structure
    loaded.signatures["serve"](x)                               # {"output_0": ...}, the same flat
    json.loads(loaded.signatures["guarantee"]()["guarantee"].numpy())

The folder is released, so it holds what inference reads and nothing else: no optimizer state, no state of random
generators, no source lines, no example. The function is traced with `training=False`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.errors import IncompatibleModel, RunFolderError
from tfdpbc.reporting.run_folder import to_json

GUARANTEE_FILE = Path("assets") / "guarantee.json"


def export_model(
    model: keras.Model,
    path: str | os.PathLike,
    guarantee: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    forward: Callable[[Any], Any] | None = None,
) -> None:
    """Writes `model` as a SavedModel that carries its guarantee; the folder appears whole or not at all.

    Args:
      model: a built Keras model. Its inputs (one tensor, or a list, tuple or dict of them) keep their structure, and
        the size of the batch stays open.
      path: the folder to make. An earlier export there is replaced; anything else that is in the way is left alone.
      guarantee: what `guarantee.json` holds; JSON-able (infinities become null).
      extra: more public facts for whoever loads the model (how to scale inputs, names of classes); JSON-able.
      forward: the forward pass to write, inputs to outputs; by default the model in inference mode.

    Raises:
      IncompatibleModel: the model is not built, or inference reads something other than its weights (a lookup table).
      RunFolderError: `path` holds something that is not an exported model, or cannot be written.
    """
    _validate.instance("model", model, keras.Model, "a keras.Model")
    path = Path(path)
    _check_replaceable(path)
    texts = {"guarantee": to_json(guarantee), "extra": to_json(extra or {})}
    served = _served(model, texts, forward)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        # One level down, because mkdtemp makes its folder private to the user and the export must not be.
        fresh = scratch / "new"
        _save(served, fresh)
        fresh.joinpath(GUARANTEE_FILE).parent.mkdir(exist_ok=True)
        fresh.joinpath(GUARANTEE_FILE).write_text(texts["guarantee"], encoding="utf-8")
        _put(fresh, path, scratch / "old")
    except (OSError, tf.errors.OpError) as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def load_exported(path: str | os.PathLike) -> Exported:
    """Opens what `export_model` wrote.

    Raises:
      RunFolderError: the folder is missing, damaged, or holds no model with a guarantee.
    """
    path = Path(path)
    for needed in ("saved_model.pb", os.fspath(GUARANTEE_FILE)):
        if not (path / needed).is_file():
            raise RunFolderError(f"no exported model in {str(path)!r}: {needed} is missing")
    try:
        loaded = tf.saved_model.load(os.fspath(path))
        texts = {name: loaded.signatures[name]()[name].numpy().decode() for name in ("guarantee", "extra")}
        guarantee, extra = (json.loads(texts[name]) for name in ("guarantee", "extra"))
        same = json.loads((path / GUARANTEE_FILE).read_text(encoding="utf-8")) == guarantee
        [serve] = loaded.serve.concrete_functions
    except Exception as error:  # TensorFlow raises a dozen kinds of exception for a file that is cut or altered
        raise RunFolderError(f"the exported model in {str(path)!r} is damaged: {_one_line(error)}") from error
    if not same:
        raise RunFolderError(f"the exported model in {str(path)!r} is damaged: {GUARANTEE_FILE} is not its guarantee")
    return Exported(loaded, serve.structured_input_signature[0][0], guarantee, extra)


class Exported:
    """A loaded model.

    Attributes:
      guarantee: the dict that was exported with it.
      extra: the dict of further public facts.
      input_spec: `tf.TensorSpec`s in the structure of the model's inputs.
    """

    def __init__(self, loaded: Any, input_spec: Any, guarantee: dict[str, Any], extra: dict[str, Any]):
        self._loaded = loaded
        self.input_spec = input_spec
        self.guarantee = guarantee
        self.extra = extra

    def predict(self, x: Any, batch_size: int = 256) -> Any:
        """The model's outputs (inference mode) for the examples `x`.

        Args:
          x: arrays or tensors [N, ...] in the structure of the model's inputs; cast to its types.
          batch_size: examples at a time.

        Returns:
          numpy arrays [N, ...] in the structure of the model's outputs.
        """
        batch_size = _validate.integer("batch_size", batch_size, at_least=1)
        arrays = self._inputs(x)
        size = len(arrays[0])
        parts = []
        for start in range(0, max(size, 1), batch_size):  # no examples: one empty batch, for the shapes of the outputs
            batch = [tf.convert_to_tensor(array[start : start + batch_size]) for array in arrays]
            outputs = self._loaded.serve(tf.nest.pack_sequence_as(self.input_spec, batch))
            parts.append(tf.nest.map_structure(lambda output: output.numpy(), outputs))
        return tf.nest.map_structure(lambda *outputs: np.concatenate(outputs), *parts)

    def _inputs(self, x: Any) -> list[np.ndarray]:
        """The leaves of `x`, checked against the structure and the shapes of the inputs, in their types."""
        specs = tf.nest.flatten(self.input_spec)
        if len(specs) == 1 and not isinstance(x, Mapping | tuple | list):
            leaves = [x]  # [input] and input are one thing to Keras
        elif not tf.nest.is_nested(self.input_spec):
            leaves = [np.asarray(x)]
        else:
            try:
                tf.nest.assert_same_structure(self.input_spec, x, check_types=False)
                same = isinstance(x, Mapping) == isinstance(self.input_spec, Mapping)
            except (TypeError, ValueError):
                same = False
            if not same:
                _validate.fail("x", f"of the structure {_words(self.input_spec)}", type(x).__name__)
            leaves = tf.nest.flatten(x)
        arrays = [np.asarray(leaf).astype(spec.dtype.as_numpy_dtype) for leaf, spec in zip(leaves, specs, strict=True)]
        for array, spec in zip(arrays, specs, strict=True):
            if not spec.shape.is_compatible_with(array.shape):
                _validate.fail("x", f"of shape {spec.shape}", array.shape)
            if len(array) != len(arrays[0]):
                _validate.fail("x", "of one length in all its parts", [len(a) for a in arrays])
        return arrays


def _words(spec: Any) -> str:
    return str(tf.nest.map_structure(lambda leaf: str(leaf.shape), spec)).replace("'(", "(").replace(")'", ")")


def _served(model: keras.Model, texts: Mapping[str, str], forward: Callable[[Any], Any] | None) -> tf.Module:
    """A module with the model's inference function and the variables it reads, and nothing else of the model."""

    # A function of its own for tracing: the model itself must not become part of what is saved.
    @tf.function(input_signature=[_input_spec(model)], autograph=False)
    def serve(inputs):
        return model(inputs, training=False) if forward is None else forward(inputs)

    concrete = serve.get_concrete_function()
    module = tf.Module()
    module.weights = list(concrete.graph.variables)
    known = {id(variable.handle) for variable in module.weights}
    foreign = [t for t, _ in concrete.graph.captures if t.dtype == tf.resource and id(t) not in known]
    if foreign:
        raise IncompatibleModel(
            "a model to be exported must compute its outputs from its inputs and weights alone; this one also reads "
            f"{len(foreign)} other resource(s), such as a lookup table: move that step in front of the model"
        )
    module.serve = serve
    for name, text in texts.items():
        setattr(module, name, _constant(name, text))
    return module


def _constant(name: str, text: str) -> Any:
    @tf.function(input_signature=[], autograph=False)
    def function():
        return {name: tf.constant(text)}

    return function


def _input_spec(model: keras.Model) -> Any:
    """`tf.TensorSpec`s, named, in the structure of the model's inputs, with an open batch dimension."""
    inputs = getattr(model, "inputs", None) if model.built else None
    if inputs:
        structure = inputs[0] if isinstance(model, keras.Sequential) else model.input
        one = not tf.nest.is_nested(structure)  # Keras numbers the names of unnamed inputs: of no use to a reader
        return keras.tree.map_structure(
            lambda leaf: _spec(leaf.shape, leaf.dtype, "inputs" if one else leaf.name), structure
        )
    # A subclassed model keeps the shape that it was built with.
    config = model.get_build_config() if model.built else None
    shapes = (config or {}).get("input_shape")
    if shapes is None:
        raise IncompatibleModel("a model to be exported must be built: call it once, or build it with an input shape")
    return _shapes_to_specs(shapes, keras.backend.standardize_dtype(model.input_dtype), "inputs")


def _shapes_to_specs(shapes: Any, dtype: str, name: str) -> Any:
    if isinstance(shapes, Mapping):
        return {key: _shapes_to_specs(shape, dtype, str(key)) for key, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return _spec(shapes, dtype, name)
    return type(shapes)(_shapes_to_specs(shape, dtype, f"{name}_{i}") for i, shape in enumerate(shapes))


def _spec(shape: Any, dtype: str, name: str) -> tf.TensorSpec:
    return tf.TensorSpec((None, *shape[1:]), dtype, name)


def _save(served: tf.Module, path: Path) -> None:
    outputs = served.serve.get_concrete_function().structured_outputs
    names = sorted(outputs) if isinstance(outputs, Mapping) else None
    spec = served.serve.input_signature

    # Signatures are flat: a dict of named tensors. Outputs without a name are called as Keras calls them.
    @tf.function(input_signature=spec, autograph=False)
    def flat(inputs):
        leaves = tf.nest.flatten(served.serve(inputs))
        keys = names if names and len(names) == len(leaves) else [f"output_{i}" for i in range(len(leaves))]
        return dict(zip(keys, leaves, strict=True))

    signatures = {"serve": flat, "serving_default": flat, "guarantee": served.guarantee, "extra": served.extra}
    tf.saved_model.save(served, os.fspath(path), signatures=signatures)


def _check_replaceable(path: Path) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not ((path / "saved_model.pb").is_file() and (path / GUARANTEE_FILE).is_file()):
        raise RunFolderError(f"{str(path)!r} exists and is not an exported model: move it away or choose another name")


def _put(fresh: Path, path: Path, aside: Path) -> None:
    """Puts the folder `fresh` in the place of `path`, whose earlier contents come back if that fails."""
    try:
        if path.exists():
            os.replace(path, aside)
        os.replace(fresh, path)
    except OSError:
        if aside.exists() and not path.exists():
            os.replace(aside, path)
        raise


def _unwritable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(f"cannot write an exported model to {str(path)!r}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
