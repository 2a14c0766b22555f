"""Lets every test import its helpers by their names; how many examples a law is tried on."""

import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("quick", max_examples=10)
settings.register_profile("thorough", max_examples=60)
settings.load_profile("quick")

for folder in ("support", "integration"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
