"""What all tests share: one BLAS thread, a hypothesis profile, and goldens with one flag to update them."""

from __future__ import annotations

import os

# Before NumPy is imported anywhere: on small matrices a second BLAS thread costs more than it saves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDENS = Path(__file__).parent / "goldens"

# No deadline and no health check on speed: a busy machine is no fault of the code.  A person's run draws new examples
# each time; a CI run (CI set) draws the same ones for the same code, so that what it says is about the change.
COMMON = {"deadline": None, "max_examples": 50, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("drawn", derandomize=False, **COMMON)
settings.register_profile("ci", derandomize=True, **COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "drawn")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write tests/goldens anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of tests/goldens/NAME, byte for byte."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / name
        if request.config.getoption("--update-goldens"):
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: run pytest --update-goldens and read what it writes"
        assert text == path.read_text(), f"{name} changed: if that is meant, run pytest --update-goldens"

    return compare
