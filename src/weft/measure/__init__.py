"""Measurements of the GPU at hand, written in the schema that validation reads."""
