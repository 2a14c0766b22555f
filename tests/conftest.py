"""Lets every test import the helpers of tests/support by their names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
