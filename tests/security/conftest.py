from __future__ import annotations

import pytest

from evals.core.errors import UserError
from evals.grading.code.sandbox import require_sandbox


@pytest.fixture(scope="session")
def sandbox_works() -> None:
    """Skips where programs cannot be run safely, and says why."""
    try:
        require_sandbox()
    except UserError as error:
        pytest.skip(str(error))
