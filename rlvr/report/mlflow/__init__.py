"""The projection of result files into MLflow: it can be deleted and made again, and nothing is read back from it."""

import os

# Before any module of this package imports mlflow, which decides on import whether it reports usage over the network.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # MLflow's 7 are minutes where no server answers
