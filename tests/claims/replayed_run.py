"""How the run of these tests is carried out, and which of its steps its token table has."""

from evals.core.run_spec import Execution

EXECUTION = Execution(lock_wait_seconds=1.0)
KEPT_STEPS = (1, 3)
