"""Named studies (config/studies/*.yaml): other methods on the model, the problems and the settings of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.errors import UserError
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
    return content


def resolve_named_study(name: str, path: Path, config: Mapping[str, Any]) -> Study:
    """The named study on top of the study ``config``, of which it keeps all but seeds, methods and reference.

    With fewer seeds in ``config`` than in the file, as in the smoke study, the named study has fewer too.

    Raises:
        UserError: one line that names the file, the key and what is accepted.
    """
    content = read_named_study(path)
    own = {key: content[key] for key in _OWN_KEYS}
    own["seeds"] = own["seeds"][: len(config["seeds"])]
    return Study.resolve({**config, **own, "study": name}, f"config/studies/{path.name}")


def shared_runs(studies: Mapping[str, Study]) -> dict[str, tuple[Study, Run]]:
    """Run id -> a study that has it, and the run: one run of a name for all studies.

    Args:
        studies: name of each study -> study.

    Raises:
        UserError: two studies mean different things by one method's name.
    """
    owners: dict[str, str] = {}
    runs: dict[str, tuple[Study, Run]] = {}
    for name, study in studies.items():
        for run in study.runs:
            if run.run not in runs:
                owners[run.run], runs[run.run] = name, (study, run)
            elif run.seed is not None and runs[run.run][0].resolved_run(run.run) != study.resolved_run(run.run):
                raise UserError(
                    f"{name}: methods.{run.method}: is not what {owners[run.run]} means by that name; accepted: the "
                    "same changes of the catalogue's entry, or another name"
                )
    return runs
