"""Named studies (config/studies/*.yaml): other methods on the model, the problems and the settings of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.study.catalogue import CATALOGUE
from rlvr.study.study import Run, Study
from rlvr.study.validation import check, read_schema, read_yaml

NAMED_STUDIES = CATALOGUE.parent / "studies"
_OWN_KEYS = ("seeds", "methods", "reference_method")


def named_study_files(directory: Path = NAMED_STUDIES) -> dict[str, Path]:
    """Name -> file of every named study."""
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def read_named_study(path: Path) -> dict[str, Any]:
    """A named study as written.

    Raises:
        UserError: it does not fit its schema.
    """
    content: dict[str, Any] = read_yaml(path)
    check(content, read_schema("named_study.schema.yaml"), f"config/studies/{path.name}")
    _check_beside(path, content)
    return content


def _check_beside(path: Path, content: Mapping[str, Any]) -> None:
    """The study whose curves are drawn beside this one's is there, stands alone and has a method for each of these."""
    if "beside" not in content:
        return
    others = {name: file for name, file in named_study_files(path.parent).items() if file != path}
    if content["beside"] not in others:
        accepted = ", ".join(others)
        raise UserError(f"config/studies/{path.name}: beside: is {content['beside']!r}; accepted: {accepted}")
    other = read_yaml(others[content["beside"]])
    if "beside" in other or len(other["methods"]) != len(content["methods"]):
        raise UserError(
            f"config/studies/{path.name}: beside: is {content['beside']!r}; accepted: a study with as many methods, "
            f"{len(content['methods'])}, in the same order, and no `beside` of its own"
        )


def resolve_named_study(name: str, path: Path, config: Mapping[str, Any]) -> Study:
    """The named study on top of the study ``config``, of which it keeps all but seeds, methods, reference and
    diagnostics.

    With fewer seeds in ``config`` than in the file, as in the smoke study, the named study has fewer too.

    Raises:
        UserError: one line that names the file, the key and what is accepted.
    """
    content = read_named_study(path)
    if not config.get("methods"):
        raise UserError(f"config/studies/{path.name}: compares methods; accepted: beside a study that has methods")
    own = {key: content[key] for key in _OWN_KEYS}
    own["seeds"] = own["seeds"][: len(config["seeds"])]
    kept = {key: value for key, value in config.items() if key != "diagnostics"}
    return Study.resolve({**kept, **own, "study": name}, f"config/studies/{path.name}")


def resolve_earlier(path: Path, study: Study) -> Study | None:
    """The methods of the named study ``study`` after the parts of their training that it is scored at, if it names any.

    A shorter training is the beginning of a longer one, step by step: nothing in a run depends on its number of steps.
    """
    content = read_named_study(path)
    if "score_at" not in content:
        return None
    methods: dict[str, Any] = {}
    for method, overrides in content["methods"].items():
        for steps in _earlier_steps(content["score_at"], study.training[method]["steps"]):
            changes = {"extends": overrides.get("extends", method), "training": {"steps": steps}}
            changes["training"] = {**overrides.get("training", {}), **changes["training"]}
            methods[_at_step(method, steps)] = {**overrides, **changes}
    first = next(name for name in methods if name.startswith(f"{study.config['reference_method']}_step"))
    changed = {"methods": methods, "reference_method": first, "study": f"{study.config['study']}_steps"}
    return Study.resolve({**study.config, **changed}, f"config/studies/{path.name}: score_at")


def score_points(study: Study, earlier: Study, score_at: Sequence[float]) -> dict[str, list[tuple[int, str]]]:
    """Method of ``study`` -> after how many steps it is scored, and under which method's name, in order."""
    points: dict[str, list[tuple[int, str]]] = {}
    for method, training in study.training.items():
        steps = _earlier_steps(score_at, training["steps"])
        points[method] = [(step, _at_step(method, step)) for step in steps if _at_step(method, step) in earlier.methods]
        points[method].append((training["steps"], method))
    return points


def _earlier_steps(score_at: Sequence[float], steps: int) -> list[int]:
    return sorted({max(1, round(part * steps)) for part in score_at} - {steps})


def _at_step(method: str, step: int) -> str:
    return f"{method}_step{step}"


@dataclass(frozen=True)
class Studies:
    """The studies that lie side by side under results/.

    Attributes:
        by_scope: where a study's own results lie ("", ``studies/NAME/``, or ``studies/NAME/steps/`` for the scores
            along its training) -> the study.
        runs: run id -> a study that has it, and the run: one run of a name for all studies.
        refused: scope of a named study that cannot be run beside the others -> why, in one line.
    """

    by_scope: Mapping[str, Study]
    runs: Mapping[str, tuple[Study, Run]]
    refused: Mapping[str, str]


def resolve_studies(config: Mapping[str, Any], source: str) -> Studies:
    """The study ``config``, which came from ``source``, and every named study on top of it.

    A named study that does not go with ``config`` stands in nobody's way: it is refused where it is asked for.

    Raises:
        UserError: ``config`` itself is not accepted.
    """
    study = Study.resolve(config, source)
    by_scope = {"": study}
    runs = {run.run: (study, run) for run in study.runs}
    owners = dict.fromkeys(runs, source)
    refused: dict[str, str] = {}
    for name, path in named_study_files().items():
        scope = f"studies/{name}/"
        try:
            named = resolve_named_study(name, path, config)
            earlier = resolve_earlier(path, named)
            new = {scope: named} | ({f"{scope}steps/": earlier} if earlier else {})
            for each in new.values():
                _check_shared(each, path, runs, owners)
        except UserError as error:
            refused[scope] = str(error)
            continue
        by_scope |= new
        added = {run.run: (each, run) for each in new.values() for run in each.runs if run.run not in runs}
        runs |= added
        owners |= dict.fromkeys(added, f"config/studies/{path.name}")
    return Studies(by_scope, runs, refused)


def _check_shared(study: Study, path: Path, runs: Mapping[str, tuple[Study, Run]], owners: Mapping[str, str]) -> None:
    """Check that the runs that ``study`` has in common with others are the same in both.

    Raises:
        UserError: two studies mean different things by one method's name.
    """
    for run in study.trained_runs:
        if run.run in runs and runs[run.run][0].resolved_run(run.run) != study.resolved_run(run.run):
            raise UserError(
                f"config/studies/{path.name}: methods.{run.method}: is not what {owners[run.run]} means by that name; "
                "accepted: the same changes of the catalogue's entry, or another name in one of them"
            )
