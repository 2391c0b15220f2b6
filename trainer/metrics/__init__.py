"""Metrics of a whole split, in NumPy, one file each; `conf/metrics/<name>.yaml` selects it.

They have the interface of Keras' metrics (`trainer.protocols.Metric`).
"""
