"""Where examples come from: arrays, tf.data, random access by index."""

from tfdpbc.data.sources import Source, as_source, check_labels

__all__ = ["Source", "as_source", "check_labels"]
