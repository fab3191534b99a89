import pytest

from evals.grading.code.sandbox import require_sandbox


@pytest.fixture(scope="session")
def sandbox_works() -> None:
    """Fails where programs cannot be run safely, and says why: a test of security that is skipped has not passed."""
    require_sandbox()
