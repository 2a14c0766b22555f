"""PyTorch programs as graphs, and runs that its profiler and other tools recorded."""
