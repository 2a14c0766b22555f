"""The clock: a deterministic, event-driven, request-level machine. It knows arrays of integers and nothing else."""
