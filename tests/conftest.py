"""Settings that every test shares."""

import os

# Before anything imports TensorFlow: tests run in one process and use the same Keras as the workers.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
