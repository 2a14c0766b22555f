"""Lets every test import its helpers by their names; how many examples a law is tried on; signals that are heard."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long a test takes depends on what else the machine does: speed is measured in benchmarks/.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _UNTIMED, max_examples=10)
settings.register_profile("thorough", _UNTIMED, max_examples=60)
settings.load_profile("quick")

for folder in ("support", "integration"):
    sys.path.insert(0, str(Path(__file__).parent / folder))


@pytest.fixture
def heard():
    """Signals interrupt, also where tests run in the background of a shell, which has them ignore Ctrl-C."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
