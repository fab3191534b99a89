"""The policies that a study evaluates: base models, trained runs, and checkpoints along the runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evals.core.records import Run
from rlvr.study.study import Study

BEST, STEPS, DECODINGS = "best/", "steps/", "decodings/"
"""The folders, in a study's own, of its best checkpoints, of the checkpoints along its runs, and of other decodings."""


@dataclass(frozen=True)
class Policy:
    """A policy that is evaluated under a run id of its own.

    Attributes:
        study: one that has it: a policy of a name is the same in all studies.
        run: its row of the run sheet: ``tiny-dapo-s1``; after 10 steps ``tiny-dapo_step10-s1`` of the method
            ``dapo_step10``; the best one ``tiny-dapo_best-s1`` of the method ``dapo``, for best is compared with best.
        directory: where it lies, laid out as a run.
        file: the file that stands for it.
        trained: the run that it lies along; a run's own row, and that of a base model, for these.
        step: the number of steps after which it is kept; None of a base model, of a run and of the best policy.
        candidates: of a best policy, those that it is chosen among: ``tiny-dapo_choice2-s1`` after 2 steps.
        chooses: whether it is such a candidate, which is evaluated on the choosing benchmark alone.
    """

    study: Study
    run: Run
    directory: str
    file: str
    trained: Run
    step: int | None = None
    candidates: tuple[Policy, ...] = ()
    chooses: bool = False


def own_policies(study: Study) -> Iterator[Policy]:
    """Yield the base models and the runs of a study."""
    for run in study.runs:
        directory = study.checkpoint(run.run)
        yield Policy(study, run, directory, f"{directory}/manifest.json", run)


def earlier_policies(study: Study) -> Iterator[Policy]:
    """Yield the policies after the fractions ``score_at`` of the runs of a study."""
    if study.config.score_at is None:
        return
    points = score_points(study)
    for trained in study.trained_runs:
        for step, name in points[trained.method][:-1]:
            title = str(study.config.methods[trained.method].of_entry.get("title", name))
            identifier = f"{trained.model}-{name}-s{trained.seed}"
            run = trained.model_copy(update={"run": identifier, "method": name, "title": title})
            directory = f"results/runs/{trained.run}/checkpoints/step-{step}"
            yield Policy(study, run, directory, f"{directory}.kept", trained, step)


def best_policies(study: Study) -> Iterator[Policy]:
    """Yield the best policy of every run of a study; none where the study reports the last ones alone."""
    best = study.config.best_checkpoint
    if best is None:
        return
    for run in study.trained_runs:
        beginning, seed, directory = f"{run.model}-{run.method}", f"s{run.seed}", f"results/runs/{run.run}"
        last = study.training[run.method].steps
        candidates = [
            Policy(
                study,
                run.model_copy(update={"run": f"{beginning}_choice{step}-{seed}"}),
                directory if step == last else f"{directory}/checkpoints/step-{step}",
                f"{directory}/candidates.kept",
                run,
                step,
                chooses=True,
            )
            for step in [*range(best.every, last, best.every), last]
        ]
        identifier = f"{beginning}_best-{seed}"
        chosen, own = run.model_copy(update={"run": identifier}), f"results/runs/{identifier}"
        yield Policy(study, chosen, own, f"{own}/manifest.json", run, candidates=tuple(candidates))


def score_points(study: Study) -> dict[str, list[tuple[int, str]]]:
    """List for every method the steps after which it is scored, in order, each with the method's name then."""
    points = {}
    for method, training in study.training.items():
        parts = study.config.score_at or ()
        earlier = sorted({max(1, round(part * training.steps)) for part in parts} - {training.steps})
        points[method] = [*((step, f"{method}_step{step}") for step in earlier), (training.steps, method)]
    return points
