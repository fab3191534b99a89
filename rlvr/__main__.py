"""``python -m rlvr``: the command ``rlvr-bench`` for a Python that has no such script."""

if __name__ == "__main__":
    import sys

    from rlvr.cli import main

    sys.exit(main())
