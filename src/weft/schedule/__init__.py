"""What is decided before a run besides overlaps: memory arbitration, and the order of a pipeline's tasks."""
