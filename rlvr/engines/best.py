"""The best policy of a training: chosen among those along it by their grades, and laid out as a run."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import write_json
from evals.core.manifest import read_manifest, verify_outputs, write_output_manifest
from evals.core.records import Chosen
from evals.scores.score import read_graded_run
from rlvr.engines.result import checkpoint_directory, copy_result


def choose_best(trained: Path, candidates: Mapping[str, str], out: Path) -> None:
    """Lay the policy with the highest average out as a run; of equals the earliest.

    Args:
        trained: directory of the run that passes through the policies, the last of which is its own.
        candidates: JSON: step -> directory of the grades of the policy after it.
        out: directory of the run that is made; the files of its checkpoint are hard links.
    """
    graded = {int(step): read_graded_run(Path(directory)) for step, directory in candidates.items()}
    if len({(each.benchmark, each.samples, frozenset(each.grades)) for each in graded.values()}) != 1:
        raise UserError("candidates: are graded on other problems, or with other numbers of samples")
    averages = {step: sum(each.counts) / (len(each.grades) * each.samples) for step, each in sorted(graded.items())}
    done = read_manifest(trained / "manifest.json", "run").details["steps"]
    if done < max(averages):  # it stopped early, and its last policy stands under each of the later steps
        first = min(step for step in averages if step >= done)
        averages = {step: average for step, average in averages.items() if step < done} | {done: averages[first]}
    step = max(averages, key=lambda one: (averages[one], -one))
    source = trained if step == done else checkpoint_directory(trained, step)
    manifest = verify_outputs(source / "manifest.json", "run")
    copy_result(source, manifest, out)
    shutil.copyfile(source / "run.json", out / "run.json")
    choice = Chosen(
        run=trained.name,
        benchmark=next(iter(graded.values())).benchmark,
        samples_per_problem=next(iter(graded.values())).samples,
        step=step,
        averages={str(one): average for one, average in averages.items()},
    )
    write_json(out / "chosen.json", choice.to_json())
    read = [Path(path) for each in graded.values() for path in each.hashes]
    write_output_manifest("choice", out / "chosen", [".json"], read, {"of_equals": "earliest"})
    shutil.copyfile(source / "manifest.json", out / "manifest.json")
