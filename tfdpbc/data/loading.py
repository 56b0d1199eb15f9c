"""Image classification data sets by name."""

from __future__ import annotations

import os
from pathlib import Path

from tfdpbc import _validate
from tfdpbc.data import glyphs
from tfdpbc.data.dataset import Dataset
from tfdpbc.errors import DataError

BUILT_IN = "glyphs"


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "train",
    limit: int | None = None,
) -> Dataset:
    """Loads an image classification data set into memory.

    Args:
      name: "glyphs" (drawn by this package, see `glyphs`), or the name of any image classification set of TensorFlow
        Datasets: "mnist", "cifar10", "fashion_mnist", "name/config", ...
      data_dir: the TFDS folder; None for TFDS's own default (``$TFDS_DATA_DIR``, else ``~/tensorflow_datasets``). A
        data set that is not prepared there is downloaded if the network allows. "glyphs" needs none.
      split: "train", "test", or for TFDS sets any of its split expressions ("train[:90%]").
      limit: keeps only the first examples (in both kinds their order is random).

    Raises:
      DataError: unknown name or split, missing folder, no network for the download, not image classification, damaged
        files.
    """
    _validate.instance("name", name, str, "a string")
    if limit is not None:
        limit = _validate.integer("limit", limit, at_least=1)
    if name == BUILT_IN:
        if split not in glyphs.SIZES:
            raise DataError(f"glyphs has no split {split!r}; it has {', '.join(glyphs.SIZES)}")
        x, y = glyphs.load(split)
        return Dataset(x[:limit], y[:limit], glyphs.NUM_CLASSES, name)
    from tfdpbc.data import tfds

    folder = None if data_dir is None else Path(data_dir).expanduser()
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist; create it to have {name} downloaded into it")
    x, y, num_classes = tfds.load(name, folder, split, limit)
    return Dataset(x, y, num_classes, name.split("/")[0].split(":")[0])
