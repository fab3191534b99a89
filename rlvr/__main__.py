"""``python -m rlvr``: the command ``rlvr-bench`` for a Python that has no such script."""

if __name__ == "__main__":
    import sys

    from rlvr.runs.job import end_with_snakemake

    end_with_snakemake()  # before the imports, which take a while

    from rlvr.cli import main

    sys.exit(main())
