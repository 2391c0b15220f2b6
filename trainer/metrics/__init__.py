"""Metrics of a whole split, in NumPy: what Keras has not. Each has the interface of Keras' metrics (`trainer.protocols.Metric`)."""
