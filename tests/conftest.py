"""Lets every test import its helpers by their names; how many examples a law is tried on; signals that are heard."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=10)
settings.register_profile("thorough", max_examples=60)
settings.load_profile("quick")

for folder in ("support", "integration"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


@pytest.fixture
def heard():
    """Ctrl-C is heard, also where tests run in the background of a shell, which has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
