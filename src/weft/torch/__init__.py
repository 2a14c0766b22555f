"""PyTorch programs captured as graphs, and runs that its profiler and other tools recorded."""
