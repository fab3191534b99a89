"""The command line of the projection into MLflow."""
