"""Fine-tunes a model on worked solutions, or goes on with it."""

from pathlib import Path

from rlvr.runs.job import job

if __name__ == "__main__":
    with job(snakemake.log[0]):
        from evals.generation import arithmetic

        machine, content = snakemake.params.machine, snakemake.params.settings
        arithmetic.set_up(machine.training_threads, machine.device == "cpu" and content["dtype"] == "float32")
        from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune

        settings = FineTuningSettings.parse(content, "training")
        base, directory = Path(snakemake.input.base).parent, Path(snakemake.output[0]).parent
        solutions = [Path(path) for path in snakemake.input.solutions]
        interval = machine.checkpoint_interval or 100
        fine_tune(settings, base, solutions, directory, machine.device, interval, 600.0)
