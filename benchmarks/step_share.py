"""The share of a training step that a method's token weights take, from the metrics of a finished study's runs.

``python benchmarks/step_share.py --results results`` prints JSON: for each method the quartiles, over all steps of all
seeds, of weights' seconds over step's seconds. Both are of the same step, so a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pandas as pd

_RUN = re.compile(r"^(?P<method>.+)-s\d+$")


def main() -> None:
    """Read and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="of a finished study")
    arguments = parser.parse_args()
    shares: dict[str, list[float]] = {}
    for path in sorted((arguments.results / "runs").glob("*/metrics.parquet")):
        if match := _RUN.match(path.parent.name):
            steps = pd.read_parquet(path)
            shares.setdefault(match["method"], []).extend(steps["seconds_token_weights"] / steps["seconds_step"])
    quantiles = {method: pd.Series(values).quantile([0.25, 0.5, 0.75]) for method, values in shares.items()}
    rows = {
        method: {
            "steps": len(shares[method]),
            **{f"quantile_{level}": round(share, 5) for level, share in levels.items()},
        }
        for method, levels in quantiles.items()
    }
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
