"""What is asked for by name: ``snakemake``, ``snakemake scores``, ``snakemake ablations`` ..."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.stages.stage import Stage
from rlvr.study.displayed import Displayed
from rlvr.study.jobs import Jobs
from rlvr.study.looks import read_decisions
from rlvr.study.plan import Plan


class Targets:
    """All stages of an invocation, and the files that each target makes."""

    def __init__(self, plan: Plan, plan_anew: Callable[[], Plan] | None = None) -> None:
        """Take a plan, and what plans again by the decisions that are there by then."""
        self.plan_anew, self.taken = plan_anew or (lambda: plan), list[str]()
        self._take_over(plan)

    def _take_over(self, plan: Plan) -> None:
        self.plan, self.shown = plan, Displayed(plan)

    def after_looks(
        self, name: str, take: Callable[[str], Any], files: Callable[[], list[str]]
    ) -> Callable[[], list[str]]:
        """Make the function of a target's files, which takes the looks at its study first, one after the other.

        ``take`` gets a look's folder, and lets Snakemake make its decisions before it asks for the files again.
        """

        def after_looks() -> list[str]:
            while left := [look for look in self._looks(name) if look not in self.taken]:
                take(left[0])
                self.taken.append(left[0])
                # Planning takes a second, for each of five looks.
                if self.plan.studies.looks[left[0]].decisions != read_decisions(left[0]):
                    self._take_over(self.plan_anew())
                    self.jobs.become(list(self._stages()))
            return files()

        return after_looks

    def _looks(self, name: str) -> list[str]:
        studies = self.plan.studies
        named = name in studies.folders
        folders = studies.together(studies.folders[name]) if named else [self.plan.study.folder]
        return [look for folder in folders for look in self.plan.looks(folder)]

    @cached_property
    def jobs(self) -> Jobs:
        """The stages of all targets; what a study cannot have is refused where it is asked for."""
        return Jobs(list(self._stages()), self.plan.execution)

    def _stages(self) -> Iterator[Stage]:
        yield from self.plan.stages()
        for folder in self.plan.studies.by_folder:
            if not self._is_refused(partial(self.plan.studies.together, folder)):
                yield from self.shown.stages(folder)

    @staticmethod
    def _is_refused(check: Callable[[], object]) -> bool:
        try:
            check()
        except UserError:
            return True
        return False

    @property
    def by_name(self) -> dict[str, Callable[[], list[str]]]:
        """Name -> the files of a target, and every file on the way to them."""
        folder, studies = self.plan.study.folder, self.plan.studies
        targets: dict[str, Callable[[], Iterable[str | Path]]] = {
            "all": lambda: self._outputs(self.shown.stages(folder)),
            "runs": lambda: self.plan.run_manifests(folder),
            "scores": lambda: self.plan.scores(folder),
            "tables": lambda: self._outputs(self.shown.tables(folder)),
            "figures": lambda: self._outputs(self.shown.figures(folder)),
            **{name: partial(self._of_named_study, name) for name in sorted({*studies.folders, *studies.refused})},
        }
        return {name: partial(self._needed, files) for name, files in targets.items()}

    def _of_named_study(self, name: str) -> list[str]:
        folders = self.plan.studies.together(self.plan.studies.folder_of(name))
        return [path for folder in folders for path in self._outputs(self.shown.stages(folder))]

    @staticmethod
    def _outputs(stages: Iterable[Stage]) -> list[str]:
        return [stage.paths()[0] for stage in stages]

    def _needed(self, files: Callable[[], Iterable[str | Path]]) -> list[str]:
        return self.jobs.needed(files())
