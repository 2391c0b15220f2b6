"""Optimizers, one file each; `conf/optimizer/<name>.yaml` selects it.

Each is a function of (learning_rate, options) that returns a Keras optimizer with TensorFlow's
fused kernels. The `legacy` classes of Keras call one kernel per variable, such as
ResourceApplyAdam. The newer ones consist of elementwise operations, read memory several times more
and cost up to a third of a step (docs/adr/0002-fused-optimizers.md). Lion, LARS, LAMB, Adafactor
and Muon have no such kernel: they are computed in TensorFlow (`common.SlotOptimizer`).
"""

OF_WHOLE_LAYERS = (".lars", ".lamb", ".adafactor", ".muon")
"""Those whose update depends on all of a layer's weights: no layer can be in pieces."""
