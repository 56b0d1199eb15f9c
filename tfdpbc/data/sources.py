"""Where a private run reads its examples: arrays in memory, a finite tf.data set, or random access by index.

A sampler draws index arrays; a `Source` turns an index array into examples. Nothing here shuffles, batches or looks at
values: lengths and structure are all that is checked, because everything else about private data must stay in the
round.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.errors import DataError

# What tensorflow-datasets and most image data sets call the two parts of a supervised example.
SUPERVISED_KEYS = ("image", "label")
_NAMES = ("x", "y", "sample_weight")
_READ = 1024  # examples per read of a tf.data set that is not batched


class Source(ABC):
    """A data set of known length that gives examples by index."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples N >= 1."""

    @abstractmethod
    def gather(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        """The examples at `indices`.

        Args:
          indices: integer array of any shape, entries in 0..N-1, repeats allowed.

        Returns:
          ``(x, y, sample_weight)``, nests of numpy arrays of shape ``indices.shape + example shape``; y and
          sample_weight are None where the data set has none.

        Raises:
          IndexError: an index is outside 0..N-1.
          DataError: a random-access object answered with something else than the examples asked for.
        """

    @property
    def tensors(self) -> tuple[Any, Any, Any] | None:
        """``(x, y, sample_weight)`` as nests of whole numpy arrays; None if the examples can only be read by index."""
        return None


class ArraySource(Source):
    """Examples held in memory (or memory-mapped): every leaf has the examples on its first axis."""

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None):
        self._tensors = _convert((x, y, sample_weight))
        self._length = _common_length(self._tensors)

    def __len__(self) -> int:
        return self._length

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        return self._tensors

    def gather(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        indices = _check_indices(indices, self._length)
        return _take(self._tensors, indices)


class RandomAccessSource(Source):
    """Examples read on demand from an object with ``__len__`` and ``__getitem__(index array)``.

    ``obj[indices]`` gets a sorted array of distinct indices and returns x, (x, y) or (x, y, sample_weight), each a
    nest of arrays with these examples on the first axis. An object that has ``__getitems__(list of int)`` (a
    `tfds.data_source`, a PyTorch or Hugging Face data set) is asked through that and returns a list of single
    examples. A dictionary with exactly the keys "image" and "label" (or those the object's
    `dataset_info.supervised_keys` names) is read as (x, y).
    """

    def __init__(self, reader: Any, y: Any = None, sample_weight: Any = None):
        self._reader = reader
        self._length = _validate.integer("len(x)", len(reader))
        if self._length == 0:
            raise DataError("the data set is empty: x has no examples")
        self._keys = getattr(getattr(reader, "dataset_info", None), "supervised_keys", None)
        self._beside = None
        if y is not None or sample_weight is not None:
            self._beside = _convert((None, y, sample_weight))
            if (beside := _common_length(self._beside)) != self._length:
                raise DataError(f"x has {self._length} examples, y and sample_weight have {beside}")
        self._structure = _structure(self._read(np.zeros([1], np.int64)))

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        indices = _check_indices(indices, self._length)
        # Sorted and distinct: padding repeats indices, and file formats such as HDF5 accept nothing else.
        distinct, inverse = np.unique(indices, return_inverse=True)
        inverse = inverse.reshape(indices.shape)
        parts = self._read(distinct)
        if _structure(parts) != self._structure:
            raise DataError(f"x[indices] changed its structure from {self._structure} to {_structure(parts)}")
        return _take(parts, inverse)

    def _read(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        try:
            if hasattr(self._reader, "__getitems__"):
                examples = [self._split(example) for example in self._reader.__getitems__(indices.tolist())]
                parts = _join(lambda leaves: np.stack([np.asarray(leaf) for leaf in leaves]), examples)
            else:
                parts = self._split(self._reader[indices])
        except DataError:
            raise
        except Exception as error:  # whatever a user's reader raises: say what was asked of it
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise DataError(
                f"x[index array] failed for an object of type {type(self._reader).__name__}: {what}"
            ) from error
        parts = _convert(parts)
        if (got := _common_length(parts)) != len(indices):
            raise DataError(f"x[indices] returned {got} examples for {len(indices)} indices")
        return parts if self._beside is None else (parts[0], *_take(self._beside, indices)[1:])

    def _split(self, element: Any) -> tuple[Any, Any, Any]:
        """Splits what the object returned into x, y, sample_weight."""
        if isinstance(element, dict):
            keys = self._keys if self._keys and set(self._keys) <= set(element) else None
            if keys is None and set(element) == set(SUPERVISED_KEYS):
                keys = SUPERVISED_KEYS
            if keys is not None:
                element = tuple(element[key] for key in keys)
        element = _split(element)
        if self._beside is not None and element[1] is not None:
            raise DataError("x[indices] returns labels of its own, so y and sample_weight must not be given beside it")
        return element


def as_source(x: Any, y: Any = None, sample_weight: Any = None) -> Source:
    """Makes a `Source` of what a Keras user passes to `fit`.

    Args:
      x: a nest (tuple, list, dict) of arrays or tensors with the examples on their first axis; or a finite
        `tf.data.Dataset` of known length that fits in memory, of x, (x, y) or (x, y, sample_weight); or an object with
        ``__len__`` and ``__getitem__(index array)``, see `RandomAccessSource`. As in Keras the elements of a
        `tf.data.Dataset` are batches, unless one of their components is a scalar or their first dimensions differ:
        then they are single examples. It is read once, so random augmentation inside it is frozen.
      y: nest of arrays or None. Must be None when `x` brings labels.
      sample_weight: array [N] (or a nest of them), or None.

    Raises:
      TypeError: `x`, `y` or `sample_weight` is of a kind that cannot be read by index (a generator, a plain list of
        numbers).
      DataError: no examples, lengths that disagree, an infinite or unknown length, arrays of Python objects.
    """
    if isinstance(x, Source) or _is_tf_dataset(x):
        if y is not None or sample_weight is not None:
            raise DataError(f"x is a {type(x).__name__}, so y and sample_weight must come inside it")
        return x if isinstance(x, Source) else _read_tf_dataset(x)
    if _is_random_access(x):
        return RandomAccessSource(x, y, sample_weight)
    return ArraySource(x, y, sample_weight)


def check_labels(y: Any, num_classes: int) -> None:
    """Checks that class labels are whole numbers in 0..num_classes-1.

    Args:
      y: array of labels, any shape, integer or float.
      num_classes: number of classes, >= 1.

    Raises:
      DataError: a label is out of range or not a whole number (NaN included); names the first one.
    """
    num_classes = _validate.integer("num_classes", num_classes, at_least=1)
    y = np.asarray(y)
    if y.dtype.kind not in "biuf":
        raise DataError(f"labels must be whole numbers in 0..{num_classes - 1}; got an array of {y.dtype}")
    good = (y >= 0) & (y < num_classes)
    if y.dtype.kind == "f":
        good &= y == np.floor(y)
    if not good.all():
        first = int(np.argmin(good.ravel()))
        raise DataError(
            f"labels must be whole numbers in 0..{num_classes - 1}; got {y.ravel()[first]} at position {first}"
            f" ({int(good.size - good.sum())} of {good.size} are out of range)"
        )


def map_leaves(function: Callable[[Any, str], Any], nest: Any, path: str = "") -> Any:
    """Applies ``function(leaf, path)`` to every leaf of nested tuples, lists and dicts; None stays None."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return {key: map_leaves(function, value, f"{path}[{key!r}]") for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        values = [map_leaves(function, value, f"{path}[{i}]") for i, value in enumerate(nest)]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return function(nest, path)


def _as_array(leaf: Any, path: str) -> np.ndarray:
    if isinstance(leaf, (str, bytes)) or not (hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__")):
        _validate.fail(f"type({path})", "an array or tensor (np.asarray makes one)", type(leaf).__name__, TypeError)
    try:
        array = np.asarray(leaf)
    except Exception as error:  # ragged or sparse tensors, torch tensors that need a gradient, ...
        raise DataError(f"{path} cannot be read as one array: {error}".splitlines()[0]) from error
    if array.dtype.kind in "OUSMm":
        raise DataError(f"{path} must be numeric; got an array of {array.dtype}")
    if array.ndim == 0:
        raise DataError(f"{path} must have the examples on its first axis; got a scalar")
    return array


def _convert(parts: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Makes every leaf of x, y and sample_weight a numpy array."""
    return tuple(map_leaves(_as_array, part, name) for name, part in zip(_NAMES, parts, strict=True))


def _take(parts: tuple[Any, Any, Any], indices: np.ndarray) -> tuple[Any, Any, Any]:
    return tuple(map_leaves(lambda leaf, _: leaf[indices], part) for part in parts)


def _common_length(parts: tuple[Any, Any, Any]) -> int:
    """The number of examples, the same in every leaf."""
    lengths: dict[str, int] = {}
    for name, part in zip(_NAMES, parts, strict=True):
        map_leaves(lambda leaf, path: lengths.update({path: len(leaf)}), part, name)
    if not lengths:
        raise DataError("x holds no arrays")
    if len(set(lengths.values())) > 1:
        raise DataError("arrays must have the same length; got " + ", ".join(f"{k}: {v}" for k, v in lengths.items()))
    length = next(iter(lengths.values()))
    if length == 0:
        raise DataError("the data set is empty: x has no examples")
    return length


def _check_indices(indices: Any, length: int) -> np.ndarray:
    indices = np.asarray(indices)
    if indices.dtype.kind not in "iu":
        _validate.fail("indices", "an array of integers", str(indices.dtype), TypeError)
    if indices.size and (indices.min() < 0 or indices.max() >= length):  # numpy would count -1 from the end
        raise IndexError(f"indices must be in 0..{length - 1}; got {indices.min()}..{indices.max()}")
    return indices


def _structure(parts: Any) -> str:
    return repr(map_leaves(lambda leaf, _: leaf.dtype.name, parts)) if parts is not None else "None"


def _join(function: Callable[[list[Any]], np.ndarray], nests: list[Any]) -> Any:
    """Joins the corresponding leaves of nests of equal structure: ``function(leaves) -> array``."""
    first = nests[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _join(function, [nest[key] for nest in nests]) for key in first}
    if isinstance(first, (tuple, list)):
        values = [_join(function, [nest[i] for nest in nests]) for i in range(len(first))]
        return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
    return function(nests)


def _split(element: Any) -> tuple[Any, Any, Any]:
    """Keras's convention: only a tuple of 1 to 3 is (x, y, sample_weight), everything else is x."""
    if isinstance(element, tuple) and not hasattr(element, "_fields"):
        if not 1 <= len(element) <= 3:
            raise DataError(f"an element must be x, (x, y) or (x, y, sample_weight); got a tuple of {len(element)}")
        return element + (None,) * (3 - len(element))
    return element, None, None


def _is_random_access(x: Any) -> bool:
    if isinstance(x, (dict, tuple, list, str, bytes, np.ndarray)) or hasattr(x, "__array__"):
        return False
    names = {kind.__name__ for kind in type(x).__mro__}
    if names & {"PyDataset", "Sequence"} and hasattr(x, "on_epoch_end"):
        kind = type(x).__name__
        _validate.fail("type(x)", "indexed by example, while a keras PyDataset is indexed by batch", kind, TypeError)
    if not (hasattr(x, "__len__") and hasattr(x, "__getitem__")):
        expected = "an array, a tf.data.Dataset of known length, or an object with __len__ and __getitem__(index array)"
        _validate.fail("type(x)", expected, type(x).__name__, TypeError)
    return True


def _is_tf_dataset(x: Any) -> bool:
    tf = sys.modules.get("tensorflow")  # whoever holds a tf.data.Dataset has imported it
    return tf is not None and hasattr(tf, "data") and isinstance(x, tf.data.Dataset)


def _read_tf_dataset(dataset: Any) -> ArraySource:
    """Reads a whole tf.data set into memory."""
    import tensorflow as tf

    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DataError("the tf.data set is infinite; the plan repeats it by itself, so leave out .repeat()")
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        raise DataError(
            "the length of the tf.data set is unknown; state it with tf.data.experimental.assert_cardinality(n)"
        )
    if cardinality == 0:
        raise DataError("the data set is empty: the tf.data set has no elements")
    shapes: list[Any] = []

    def note(spec: Any, path: str) -> None:
        if not isinstance(spec, tf.TensorSpec):
            raise DataError(f"{path} must be a dense tensor; got {type(spec).__name__}")
        shapes.append(spec.shape)

    for name, part in zip(_NAMES, _split(dataset.element_spec), strict=True):
        map_leaves(note, part, name)
    first_dimensions = {shape[0] for shape in shapes if shape.rank} - {None}
    if any(shape.rank == 0 for shape in shapes) or len(first_dimensions) > 1:
        dataset = dataset.batch(_READ)
    return ArraySource(*_join(np.concatenate, [_split(batch) for batch in dataset.as_numpy_iterator()]))
