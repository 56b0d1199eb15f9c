"""TensorFlow Datasets by name: found on disk, else downloaded; read whole; every trouble becomes one clear `DataError`.

What is on disk is read without the code of its builder, so it needs no network and any prepared version will do.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc.data.download import download, network_allows
from tfdpbc.errors import DataError

_NAME = re.compile(r"(?P<name>[A-Za-z]\w*)(/(?P<config>[\w.+-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_READ = 512


def load(name: str, data_dir: Path | None, split: str, limit: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Images, labels and the number of classes. See `tfdpbc.data.load`; `data_dir` exists if it is given."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise DataError(_unknown(name))
    data_dir = data_dir or _default_folder()
    folder = _find(data_dir, **match.groupdict())
    if folder is None:
        _fetch(name, match["name"], data_dir)
        folder = _find(data_dir, **match.groupdict())
        if folder is None:
            raise DataError(f"{name} was downloaded, but {data_dir} holds no prepared version of it")
    return _read(name, folder, split, limit)


def _default_folder() -> Path:
    return Path(os.environ.get("TFDS_DATA_DIR") or Path("~", "tensorflow_datasets")).expanduser()


def _find(data_dir: Path, name: str, config: str | None, version: str | None) -> Path | None:
    """The folder of the highest prepared version, or None."""
    base = data_dir / name / config if config else data_dir / name
    prepared = _prepared(base)
    if not prepared and not config and base.is_dir():
        configs = [child for child in sorted(base.iterdir()) if child.is_dir() and _prepared(child)]
        if len(configs) > 1:
            names = ", ".join(f"{name}/{child.name}" for child in configs)
            raise DataError(f"{name} has several configurations in {data_dir}; name one: {names}")
        prepared = _prepared(configs[0]) if configs else {}
    if version:
        return prepared.get(version)
    return prepared[max(prepared, key=lambda v: tuple(map(int, v.split("."))))] if prepared else None


def _prepared(base: Path) -> dict[str, Path]:
    """version -> folder. TFDS writes under another name and renames, so a version folder was once whole."""
    if not base.is_dir():
        return {}
    return {child.name: child for child in base.iterdir() if _VERSION.fullmatch(child.name) and child.is_dir()}


def _fetch(name: str, base_name: str, data_dir: Path) -> None:
    """Downloads and prepares, or says why not."""
    import tensorflow_datasets as tfds

    if base_name not in tfds.list_builders(with_community_datasets=False):
        raise DataError(_unknown(name))
    if not network_allows():
        raise DataError(
            f"{name} is not prepared in {data_dir} and there is no network to download it; prepare it elsewhere"
            f" (tfds build {base_name}) and give its folder as the data folder, or use the built-in data set 'glyphs'"
        )
    download(name, data_dir)


def _unknown(name: str) -> str:
    import tensorflow_datasets as tfds

    known = ["glyphs", *tfds.list_builders(with_community_datasets=False)]
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    hint = (
        f"; did you mean {' or '.join(close)}?"
        if close
        else "; known are 'glyphs' and the names of TensorFlow Datasets"
    )
    return f"unknown data set {name!r}{hint}"


def _read(name: str, folder: Path, split: str, limit: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(str(folder))
        splits = list(builder.info.splits)
    except Exception as error:  # TFDS raises what its JSON, its registry or the file system raise
        raise _damaged(name, folder, error) from error
    image_key, label_key, num_classes = _features(name, builder.info)
    try:
        size = builder.info.splits[split].num_examples
    except (ValueError, KeyError) as error:
        raise DataError(f"{name} has no split {split!r}; it has {', '.join(splits)}") from error
    size = size if limit is None else min(size, limit)
    if size == 0:
        raise DataError(f"the split {split!r} of {name} is empty")
    shape, dtype = builder.info.features[image_key].shape, builder.info.features[image_key].np_dtype
    x, y = np.empty((size, *shape), dtype), np.empty(size, np.int64)
    # In the order of the files, in whole passes only: no caching beside the arrays.
    config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False, add_tfds_id=False)
    place = 0
    try:
        examples = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        pairs = examples.take(size).map(lambda example: (example[image_key], example[label_key])).batch(_READ)
        for images, labels in pairs.as_numpy_iterator():
            x[place : place + len(images)], y[place : place + len(images)] = images, labels
            place += len(images)
    except Exception as error:  # tf.errors.*, OSError, ValueError: all mean that the files are not what they say
        raise _damaged(name, folder, error) from error
    if place != size:
        raise _damaged(name, folder, f"{place} examples in {split!r} instead of {size}")
    if y.min() < 0 or y.max() >= num_classes:
        raise _damaged(name, folder, f"labels outside 0..{num_classes - 1}")
    return x, y, num_classes


def _features(name: str, info: Any) -> tuple[str, str, int]:
    """The keys of image and label, and the number of classes; DataError if it is no image classification."""
    import tensorflow_datasets as tfds

    keys = info.supervised_keys or ("image", "label")
    features = info.features
    why = None
    if len(keys) != 2 or not all(isinstance(key, str) and key in features for key in keys):
        why = "it has no pair of image and label"
    elif not isinstance(features[keys[0]], tfds.features.Image):
        why = f"{keys[0]!r} is no image"
    elif not isinstance(features[keys[1]], tfds.features.ClassLabel):
        why = f"{keys[1]!r} is no class label"
    elif None in features[keys[0]].shape:
        why = f"its images have no fixed size, {features[keys[0]].shape}"
    elif not features[keys[1]].num_classes:
        why = "its number of classes is not known"
    if why:
        raise DataError(f"{name} is not a data set for image classification: {why}")
    return keys[0], keys[1], features[keys[1]].num_classes


def _damaged(name: str, folder: Path, error: object) -> DataError:
    if isinstance(error, BaseException):
        lines = str(error).strip().splitlines() or [""]
        # TensorFlow's messages begin with the name of the graph node and end with that of the operation.
        text = re.sub(r"^(\{\{.*?\}\} ?)+|\[Op:.*$", "", lines[0]).strip()
        error = f"{type(error).__name__}: {text[:200]}"
    return DataError(f"{name} in {folder} is damaged ({error}); remove that folder and prepare the data set again")
