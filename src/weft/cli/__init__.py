"""The command line: one module per command group; each command calls one public function."""
