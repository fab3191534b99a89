"""The studies of one invocation: the main one, and beside it those of config/studies on top of it.

A study's own results lie in its folder under results/, ``studies/NAME/``, or directly there (folder ``""``). Problems,
models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.records import Run
from rlvr.study.designs import RATES, at_rates
from rlvr.study.looks import LOOKS, PlannedLook, decisions_of, look_folders, plan_looks
from rlvr.study.policies import (
    BEST,
    DECODINGS,
    STEPS,
    Policy,
    best_policies,
    earlier_policies,
    own_policies,
    score_points,
)
from rlvr.study.source_files import CONFIG
from rlvr.study.study import Study
from rlvr.study.study_file import read_extended, read_study, read_study_file

DEFAULT_STUDY, NAMED_STUDIES = CONFIG / "config.yaml", CONFIG / "studies"
FOLDER = rf"(?:studies/[^/]+/)?(?:{LOOKS}\d+/|{STEPS}|{BEST}|{DECODINGS}[^/]+/)?"
"""The pattern of a folder of results: a study's own, and one within it."""
_SHARED = (
    *("engine", "models", "problems", "validation", "benchmarks", "benchmark_sources", "evaluation", "checkpoint"),
    *("statistics", "execution"),
)
"""Sections that studies side by side have in common."""


def named_study_files(directory: Path = NAMED_STUDIES) -> dict[str, Path]:
    """Name -> file of every study that can be asked for by its name."""
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def asked_names() -> list[str]:
    """The names that studies beside the main one are asked for by."""
    return [*named_study_files(), RATES]


def resolve_named_study(path: Path, main: Study, content: Mapping[str, Any], is_checked: bool = False) -> Study:
    """Resolve a study of config/studies on top of the ``main`` one, of which ``content`` is the configuration.

    With fewer seeds there than in the file, as in the smoke study, it has fewer too.
    """
    source = f"config/studies/{path.name}"
    if not main.methods:
        raise InvalidInput(source, "", "compares methods", "beside a study that has methods")
    named = read_study_file(path, instead=content)
    if isinstance(named.get("seeds"), list):
        named["seeds"] = named["seeds"][: len(main.config.training_seeds)]
    study = Study.resolve(named, source, is_checked)
    if not study.folder:
        raise InvalidInput(source, "folder", "is missing", "studies/NAME")
    _check_shared(study, main)
    return study


def _check_shared(study: Study, other: Study) -> None:
    """Check that two studies differ in nothing that they share."""
    for key in _SHARED:
        if key == "validation" and study.config.validation is None:
            continue  # scores along runs of its own
        if getattr(study.config, key) != getattr(other.config, key):
            accepted = f"that of {other.config.study}, which it lies beside; or no folder, and another --directory"
            raise InvalidInput(study.source, key, "differs", accepted)


class Studies:
    """The studies that lie side by side under results/. Those of config/studies are resolved once one is asked for.

    Attributes:
        main: the study that was asked for.
        by_folder: where a study's own results lie ("" or ``studies/NAME/``) -> the study.
        policies: run id -> the policy: one of a name for all studies.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        source: str,
        extended: Mapping[str, Any] | None = None,
        is_checked: bool = False,
    ) -> None:
        """Resolve the main study, which came from ``source``; the process that started this one may have checked it.

        One with a folder has to go with the study that it ``extended``, whose runs lie in the same directory.
        """
        self._content, self._is_checked = content, is_checked
        self.by_folder, self.policies = dict[str, Study](), dict[str, Policy]()
        self._folders, self._refused = dict[str, str](), dict[str, str]()  # of config/studies, by their names
        self._plans = dict[tuple[object, ...], tuple[Study, dict[str, PlannedLook]]]()
        self.main = Study.resolve(content, source, is_checked)
        if self.main.folder and extended is not None and not is_checked:
            parent = Study.resolve(extended, f"what {source} extends")
            _check_shared(self.main, parent)
            self._add(parent)
            self._add(self.main)
            self.by_folder, self.policies = {}, {}
        self._add(self.main)

    @classmethod
    def read(cls, files: Iterable[str | Path], changes: Mapping[str, Any], is_checked: bool = False) -> Studies:
        """Read the files of a study, with the changes of ``snakemake --config``."""
        paths = list(files)
        named = ", ".join(str(path).removeprefix(f"{CONFIG.parent}/") for path in paths)
        return cls(read_study(paths, changes), named, read_extended(paths, changes), is_checked)

    # What lies where

    def study(self, folder: str) -> Study:
        """The whole study whose results, or some of whose results, lie in a folder."""
        own = re.sub(rf"({LOOKS}\d+/|{STEPS}|{BEST}|{DECODINGS}[^/]+/)$", "", folder)
        if own not in self.by_folder:
            self._resolve_named()
        if own not in self.by_folder:
            raise UserError(f"results/{folder}: no study has this folder; accepted: {', '.join(self._folders)}")
        return self.by_folder[own]

    def left(self, folder: str) -> Study:
        """The study that is left after the looks that were taken."""
        return self._planned(folder)[0]

    def looks(self, folder: str) -> dict[str, PlannedLook]:
        """The looks at the study of a folder, by their folders, planned by the decisions that are there by now."""
        return self._planned(folder)[1]

    def _planned(self, folder: str) -> tuple[Study, dict[str, PlannedLook]]:
        study = self.study(folder)
        decisions = filter(Path.is_file, map(decisions_of, look_folders(study)))
        key: tuple[str | bytes, ...] = (study.folder, *map(Path.read_bytes, decisions))
        if key not in self._plans:
            self._plans[key] = plan_looks(study)
        return self._plans[key]

    def compared(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder, by the decisions that are there by now."""
        study = self.left(folder)
        if folder.endswith((BEST, STEPS)):
            along = best_policies(study) if folder.endswith(BEST) else earlier_policies(study)
            return [run for run in self.main.runs if run.seed is None] + [policy.run for policy in along]
        looks = self.looks(folder)
        return looks[folder].study.trained_runs if folder in looks else study.runs

    def policy(self, run: str) -> Policy:
        """A policy by its run id."""
        if run not in self.policies:
            self._resolve_named()
        if run not in self.policies:
            raise UserError(f"{run}: no study has this run")
        return self.policies[run]

    def candidate_steps(self, run: str) -> list[int]:
        """The steps of a run, but the last one, after which the best policy is chosen among its policies."""
        last = self.policy(run)
        best = self.policy(f"{last.run.model}-{last.run.method}_best-s{last.run.seed}")
        return [each.step for each in best.candidates if each.step and each.directory != last.directory]

    def kept_steps(self, run: str) -> list[int]:
        """The steps after which a run keeps its policy from the start.

        The best one is chosen among them, or its study is scored at them. Policies of the main study's runs at which
        another study alone is scored are not among them: few ask for them, and they are made again from saved states.
        """
        policy = self.policy(run)
        steps = self.candidate_steps(run) if policy.study.config.best_checkpoint else []
        steps += [step for step, _ in score_points(policy.study)[policy.run.method][:-1]]
        return sorted(set(steps))

    def priority(self, run: str) -> float:
        """The order of the training jobs: every method's first seed comes before any method's second."""
        policy = self.policy(run)
        seeds, seed = policy.study.config.training_seeds, policy.run.seed
        return 50 - seeds.index(seed) / len(seeds) if seed in seeds else 50.0

    # The studies of config/studies

    def folder_of(self, name: str) -> str:
        """The folder of a study of config/studies; a :class:`UserError` if it does not go with the main one."""
        self._resolve_named()
        if name in self._refused:
            raise UserError(self._refused[name])
        return self._folders[name]

    def together(self, folder: str) -> list[str]:
        """The folders that are made together: a study's, and that of the study that it names in ``beside``."""
        study = self.study(folder)
        name = study.config.beside
        if name is None:
            return [folder]
        self._resolve_named()
        named = (*self._folders, *self._refused)
        others = [other for other in named if self._folders.get(other) != folder and other != RATES]
        if name not in others:
            raise InvalidInput(study.source, "beside", f"is {name!r}", ", ".join(others))
        other = self.study(self.folder_of(name))
        count = len(study.config.varied_methods)
        if other.config.beside is not None or len(other.config.varied_methods) != count:
            accepted = f"a study with as many methods, {count}, in the same order, and no `beside` of its own"
            raise InvalidInput(study.source, "beside", f"is {name!r}", accepted)
        return [folder, other.folder]

    def _resolve_named(self) -> None:
        """Resolve every study of config/studies, once: name -> folder, and the names of the others -> why not.

        A study that does not go with the main one stands in nobody's way: it is refused where it is asked for.
        """
        if self._folders or self._refused:
            return
        for name, path in named_study_files().items():
            try:
                study = resolve_named_study(path, self.main, self._content, self._is_checked)
                other = self.by_folder.get(study.folder)
                if other is None:
                    self._add(study)
                elif study.config != other.config:
                    raise InvalidInput(study.source, "folder", f"is that of {other.source}", "another folder")
                self._folders[name] = study.folder
            except UserError as error:
                self._refused[name] = str(error)
        try:
            titles, source = self.main.titles, self.main.source
            content = at_rates(self.main.config, self._content, titles, source)
            rates = Study.resolve(content, f"{source}: snakemake rates", self._is_checked)
            self._add(rates)
            self._folders[RATES] = rates.folder
        except UserError as error:
            self._refused[RATES] = str(error)

    def _add(self, study: Study) -> None:
        """Put a study beside the others; a :class:`UserError` if a name of a policy means two of them."""
        along = [*earlier_policies(study), *best_policies(study)]
        candidates = [candidate for policy in along for candidate in policy.candidates]
        added: dict[str, Policy] = {}

        @cache
        def trains_as(owner_folder: str, model: str, method: str) -> bool:
            seed = study.seeds(model, method)[0]
            return study.trains_as(self.by_folder[owner_folder], f"{model}-{method}-s{seed}")

        for policy in chain(own_policies(study), along, candidates):
            run, trained = policy.run.run, policy.trained
            if run in added:
                _refuse(policy, added[run])
            if other := self.policies.get(run):
                is_same = policy.directory == other.directory
                if is_same and trained.seed and not self._is_checked:
                    is_same = trains_as(other.study.folder, trained.model, trained.method)
                if not is_same:
                    _refuse(policy, other)
            added[run] = policy
        self.by_folder[study.folder] = study
        self.policies = {**added, **self.policies}


def _refuse(policy: Policy, other: Policy) -> None:
    """Refuse a name that means another policy in the study of the ``other`` one, or in the same study."""
    along, own = (other, policy) if policy.run == policy.trained else (policy, other)
    is_this, method, source = policy.study is other.study, own.run.method, policy.study.source
    of_other = "this study" if is_this else other.study.source
    if along.run == along.trained:
        accepted = "the same changes of the catalogue's entry, or another name in one of them"
        raise InvalidInput(source, f"methods.{method}", f"is not what {of_other} means by that name", accepted)
    after = f"after {along.step} steps" if along.step and not along.chooses else "as `checkpoint` chooses it"
    if own is policy or is_this:
        found = f"is the name of {along.trained.method} {after}, in {of_other}"
        raise InvalidInput(source, f"methods.{method}", found, "another name")
    found = f"gives {along.trained.method} {after} the name {method}, which is a method of {of_other}"
    raise InvalidInput(source, "score_at", found, f"another name of the method {method}")
