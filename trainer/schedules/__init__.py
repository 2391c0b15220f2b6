"""Learning rate schedules, one file each; `conf/schedule/<name>.yaml` selects it.

A schedule is a function of (peak, total_steps, steps_per_epoch, its options) that returns a Keras
schedule. Options in epochs are turned into steps by `steps_per_epoch`, which need not be whole.
"""
