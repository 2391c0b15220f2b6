"""Settings that every test shares."""

import os

# Before anything imports TensorFlow: tests run in one process and use the same Keras as the workers.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

# Four virtual devices, before the first operation: enough for every strategy that is tested inside this process.
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4)
tf.config.list_logical_devices()  # from here on no test can change them
