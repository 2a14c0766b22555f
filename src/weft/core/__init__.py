"""Errors, units, declared options, files and records on disk; what an answer and its report are."""
