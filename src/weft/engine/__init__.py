"""The request-level simulator: deterministic and event-driven, on arrays of integers alone."""
