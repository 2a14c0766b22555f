"""Errors, units, declared options, files and cached records; what answers, reports and extensions are."""
