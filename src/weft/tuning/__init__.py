"""What to choose for a machine: strategies, splits, kernels and degrees, from tables of simulated runs."""
