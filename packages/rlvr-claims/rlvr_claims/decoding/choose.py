"""Thresholds and gammas for the problems that are scored, chosen on problems that are not."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evals.core.errors import InvalidInput
from evals.core.files import write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from rlvr_claims.decoding import SCHEMES
from rlvr_claims.decoding.settings import Choice, Choices, Decoding, Sweep, SweepPoint


def read_sweeps(paths: Sequence[Path]) -> dict[str, Sweep]:
    """Read the sweeps of several pairs, by the name of the trained model's directory, which is also the sweep's.

    UserError if one is missing, changed, or no sweep, or they have different points.
    """
    sweeps: dict[str, Sweep] = {}
    for path in paths:
        verify_outputs(path.parent / "manifest.json", "decoding_sweep")
        run = path.absolute().parent.name
        if run in sweeps:
            raise InvalidInput(str(path), "", f"is a second sweep of {run}", "sweeps of different trained models")
        sweeps[run] = Sweep.read(path)
    names = [[point.name for point in sweep.points] for sweep in sweeps.values()]
    for path, grid in zip(paths, names, strict=True):
        if grid != names[0]:
            raise InvalidInput(str(path), "points", f"are others than those of {paths[0]}", "sweeps of one grid")
    return sweeps


def choose(sweeps: Mapping[str, Sweep]) -> Choices:
    """Choose for every row of the table the fraction and gamma with the highest average over the sweeps.

    A fraction is a threshold for each pair, its own quantile. Equal averages are settled by the smaller fraction, then
    the smaller gamma. A fraction of 1 is never chosen: with every token replaced it is the trained model, which has a
    row of its own.
    """
    chosen = {}
    for scheme in SCHEMES:
        candidates: dict[tuple[float, float], dict[str, SweepPoint]] = {}
        for run, sweep in sweeps.items():
            for point in sweep.points:
                if point.decoding.scheme == scheme and point.fraction is not None and point.fraction < 1:
                    candidates.setdefault((point.fraction, point.decoding.gamma), {})[run] = point
        averages = {key: float(np.mean([swept.average for swept in of.values()])) for key, of in candidates.items()}
        if averages:
            fraction, gamma = best = min(averages, key=lambda key: (-averages[key], *key))
            by_run = {run: point.decoding for run, point in candidates[best].items()}
            chosen[scheme] = Choice(fraction=fraction, gamma=gamma, average=averages[best], by_run=by_run)
    return Choices(chosen=chosen)


def write_choice(sweeps: Sequence[Path], out: Path) -> None:
    """Choose the best thresholds and gammas of sweeps."""
    write_json(out, choose(read_sweeps(sweeps)).to_json())
    write_output_manifest("decoding_choice", out.with_suffix(""), [out.suffix], sweeps, {})


def chosen_decoding(path: Path, scheme: str, run: str) -> Decoding:
    """The way of decoding that was chosen for a row of the table and a run; InvalidInput if there is none."""
    chosen = Choices.read(path).chosen
    if scheme not in chosen or run not in chosen[scheme].by_run:
        raise InvalidInput(str(path), "", f"has no {scheme} for {run}", f"{', '.join(chosen)}, and the runs swept")
    return chosen[scheme].by_run[run]
