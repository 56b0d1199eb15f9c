"""What every test needs: a quiet TensorFlow, no display, reproducible property tests."""

import gc
import os

# Before anything imports TensorFlow or matplotlib.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from hypothesis import settings

# Machines under load must not fail a test, and a test that passed must pass again.
settings.register_profile("tfdpbc", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tfdpbc")

# Tracing makes millions of small objects that live on; looking through them all again and again takes time.
gc.set_threshold(100_000, 20, 100)
