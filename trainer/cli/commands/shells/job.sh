#!/bin/bash
{options}

unset TF_CONFIG  # srun says who works together
{point}srun --kill-on-bad-exit=1 \
  {command}
code=$?
# 143: it has saved and left before its time was over. Slurm itself starts a job again only after
# a preemption and the loss of a node.
if [ "$code" -eq 143 ]; then scontrol requeue "{job}"; fi
exit "$code"
