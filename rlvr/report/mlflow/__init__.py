"""MLflow shows a copy of the results; it can be deleted and made again, and nothing is read back from it."""

import os

# Before any module of this package imports mlflow, which decides on import whether it reports usage over the network.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
# MLflow's own limits, 120 s and 7 more tries, hold a job for an hour where a server accepts and never answers.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
