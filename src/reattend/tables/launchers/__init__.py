"""Ways to start the workers of a table: in this process, in worker processes, in SLURM jobs."""
