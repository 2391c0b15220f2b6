"""Learning rate schedules, one file each; `conf/schedule/<name>.yaml` selects it.

A schedule is a function of (peak, total_steps, its options) that returns a Keras schedule.
"""
