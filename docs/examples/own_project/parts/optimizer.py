"""Your own optimizer: each weight moves by the learning rate, in the direction of its gradient."""

import tensorflow as tf


class SignDescent(tf.keras.optimizers.legacy.Optimizer):
    def __init__(self, learning_rate):
        super().__init__("SignDescent")
        self._set_hyper("learning_rate", learning_rate)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return var.assign_sub(self._decayed_lr(var.dtype) * tf.sign(grad))

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        raise NotImplementedError("embeddings need another optimizer")
