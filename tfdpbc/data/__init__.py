"""Where examples come from: data sets by name, arrays, tf.data, random access by index."""

from tfdpbc.data.augmentation import Augmentation
from tfdpbc.data.dataset import GENERIC, NORMALIZATION, Dataset
from tfdpbc.data.loading import load
from tfdpbc.data.sources import Source, as_source, check_labels

__all__ = ["GENERIC", "NORMALIZATION", "Augmentation", "Dataset", "Source", "as_source", "check_labels", "load"]
