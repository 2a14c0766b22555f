"""The commands of `weft`: one module per group; each command parses values and calls one public function."""
