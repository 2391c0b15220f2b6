#!/bin/bash
{options}

unset TF_CONFIG  # srun sets the tasks
{point}srun --kill-on-bad-exit=1 \
  {command}
code=$?
# 143: it saved and exited before its time was over. Slurm itself starts a job again only after
# a preemption and the loss of a node.
if [ "$code" -eq 143 ]; then scontrol requeue "{job}"; fi
exit "$code"
