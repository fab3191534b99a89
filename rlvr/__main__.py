"""``python -m rlvr``: the command ``rlvr-bench`` for a Python that has no such script."""

if __name__ == "__main__":
    import sys

    from rlvr.runs.job import end_with_snakemake

    end_with_snakemake()  # before the imports, which take a while

    status = None
    if sys.argv[1:2] in (["train"], ["sample"]):
        from rlvr.runs.warm_start import ask

        training = "rlvr.cli.application", "rlvr.cli.training", "rlvr.engines.local.train"
        status = ask("torch", *training, "evals.generation.evaluate", "evals.generation.local_backend")
    if status is None:
        from rlvr.cli import main

        status = main()
    sys.exit(status)
