"""The best policy of a training: chosen among those along it by their grades, and laid out as a run."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from evals.core.records import Chosen
from evals.scores.score import read_graded_run
from rlvr.engines.result import checkpoint_directory


def choose_best(trained: Path, candidates: Mapping[str, str], out: Path) -> None:
    """Lay the policy with the highest average out as a run; of equals the earliest.

    Args:
        trained: directory of the run that passes through the policies, the last of which is its own.
        candidates: JSON: step -> directory of the grades of the policy after it.
        out: directory of the run that is made; the files of its checkpoint are hard links.
    """
    graded = {int(step): read_graded_run(Path(directory)) for step, directory in candidates.items()}
    if len({(each.benchmark, each.samples, frozenset(each.grades)) for each in graded.values()}) != 1:
        raise UserError("--candidates: are graded on other problems, or with other numbers of samples")
    averages = {step: sum(each.counts) / (len(each.grades) * each.samples) for step, each in sorted(graded.items())}
    step, last = max(averages, key=lambda one: (averages[one], -one)), max(averages)
    source = trained if step == last else checkpoint_directory(trained, step)
    manifest = verify_outputs(source / "manifest.json", "run")
    for file in (path for directory in ("checkpoint", ".") for path in (out / directory).glob("*") if path.is_file()):
        file.unlink()
    (out / "checkpoint").mkdir(parents=True, exist_ok=True)
    for name in manifest.outputs:
        if name.startswith("checkpoint/"):
            os.link(source / name, out / name)
        else:  # an output that Snakemake knows: a link has the time of its file, and would pass for out of date
            shutil.copyfile(source / name, out / name)
    shutil.copyfile(source / "run.json", out / "run.json")
    choice = Chosen(
        run=trained.name,
        benchmark=graded[step].benchmark,
        samples_per_problem=graded[step].samples,
        step=step,
        averages={str(one): average for one, average in averages.items()},
    )
    write_json(out / "chosen.json", choice.to_json())
    read = [Path(path) for each in graded.values() for path in each.hashes]
    write_output_manifest("choice", out / "chosen", [".json"], read, {"of_equals": "earliest"})
    shutil.copyfile(source / "manifest.json", out / "manifest.json")
