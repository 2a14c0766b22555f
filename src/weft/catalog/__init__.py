"""Values with a unit and a source, or the word assumed with a range, in TOML."""
