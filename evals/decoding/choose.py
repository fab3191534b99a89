"""Thresholds and gammas for the problems that are scored, chosen on problems that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_json, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.decoding import SCHEMES
from evals.decoding.criteria import Criterion
from evals.decoding.settings import Decoding, Mode


@dataclass(frozen=True)
class Sweep:
    """One pair's ``sweep.json``.

    Attributes:
        run: name of the trained model's directory, which is also that of the sweep.
        samples: responses a problem.
        points: its rows.
    """

    run: str
    path: Path
    samples: int
    points: Sequence[Mapping[str, Any]]


def read_sweep(path: Path) -> Sweep:
    """Read a sweep after checking it against its manifest.

    Raises:
        UserError: it is missing, changed, or no sweep.
    """
    verify_outputs(path.parent / "manifest.json", "decoding_sweep")
    content = read_json(path)
    return Sweep(path.absolute().parent.name, path, content["samples_per_problem"], content["points"])


def choose(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """For every row of the table the fraction and gamma with the highest average over the sweeps.

    A fraction is a threshold for each pair, its own quantile. Equal averages are settled by the smaller fraction, then
    the smaller gamma.

    Raises:
        UserError: the sweeps have different points.
    """
    grids = [{point["name"] for point in sweep.points} for sweep in sweeps]
    for sweep, grid in zip(sweeps, grids, strict=True):
        if grid != grids[0]:
            raise UserError(f"{sweep.path}: has other points than {sweeps[0].path}; accepted: sweeps of one grid")
    chosen = {}
    for scheme in SCHEMES:
        candidates: dict[tuple[float, float], list[tuple[str, Mapping[str, Any]]]] = {}
        for sweep in sweeps:
            for point in sweep.points:
                decoding = Decoding.from_json(point["decoding"])
                # With every token replaced it is the trained model, which has a row of its own.
                if scheme_of(decoding) == scheme and point["fraction"] < 1:
                    candidates.setdefault((point["fraction"], decoding.gamma), []).append((sweep.run, point))
        if not candidates:
            continue
        best = min(candidates, key=lambda key: (-_average(candidates[key]), *key))
        chosen[scheme] = {
            "fraction": best[0],
            "gamma": best[1],
            "average": _average(candidates[best]),
            "by_run": {run: point["decoding"] for run, point in candidates[best]},
        }
    return {"chosen": chosen}


def scheme_of(decoding: Decoding) -> str | None:
    """Which row of the table a way of decoding could fill: none unless the log-prob difference decides."""
    if decoding.criterion is not Criterion.LOG_PROB_DIFFERENCE:
        return None
    return "replacement" if decoding.mode is Mode.REPLACEMENT else f"extrapolation_{decoding.driver.value}"


def _average(points: Sequence[tuple[str, Mapping[str, Any]]]) -> float:
    return float(np.mean([point["average"] for _, point in points]))


def write_choice(paths: Sequence[Path], out: Path) -> None:
    """Choose, and write the choice with a manifest."""
    content = choose([read_sweep(path) for path in paths])
    write_json(out, content)
    inputs = {path.as_posix(): sha256_file(path) for path in paths}
    Manifest(
        kind="decoding_choice",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters={},
        fingerprint=fingerprint(sorted(inputs.values())),
    ).write(out.with_suffix(".manifest.json"))


def chosen_decoding(path: Path, scheme: str, run: str) -> Decoding:
    """What was chosen for a row of the table and a run.

    Raises:
        UserError: nothing was.
    """
    chosen = read_json(path)["chosen"]
    if scheme not in chosen or run not in chosen[scheme]["by_run"]:
        raise UserError(f"{path}: has no {scheme} for {run}; accepted: {', '.join(chosen)}, and the runs swept")
    return Decoding.from_json(chosen[scheme]["by_run"][run])
