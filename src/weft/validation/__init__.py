"""The models against measurements: errors per machine, and parameters fitted to a machine's own rows."""
