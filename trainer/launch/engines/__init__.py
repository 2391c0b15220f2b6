"""Ray, Slurm and Kubernetes, where they start the processes of a run."""
