"""Trains a base model, or goes on with it."""

from pathlib import Path

from rlvr.runs.job import job

if __name__ == "__main__":
    with job(snakemake.log[0]):
        from evals.generation import arithmetic

        arithmetic.set_up(snakemake.params.machine.base_threads)  # Snakemake's own depend on --cores
        from rlvr.base_model.train import BaseModelSettings, train_base_model

        settings = BaseModelSettings.parse(snakemake.params.settings, "training")
        held_out = map(Path, snakemake.input.held_out)
        directory = Path(snakemake.output[0]).parent
        train_base_model(settings, Path(snakemake.input.corpus), directory, 100, 600.0, *held_out)
