"""The verdict on a component in one file: checks, contrast on one seed, then seeds until the comparison is certain."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.comparisons import Comparison, Comparisons, Contrast, Verdict
from evals.core.errors import NotAccepted, UserError
from evals.core.records import ALL_BENCHMARKS
from evals.scores.contrast import MeasuredRun, estimate_contrast
from rlvr.methods.component_file import components_in
from rlvr.methods.components import BATCHING_KINDS
from rlvr.methods.method import compose
from rlvr.study.catalogue import load_catalogue
from rlvr.study.evaluation import run_study
from rlvr.study.new_study import write_new_study
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

_HALF = "_half_steps"
LOOKS = (4, 6, 8, 11, 16)
_DEFAULT = REPOSITORY / "config/config.yaml"


@dataclass(frozen=True)
class Named:
    """A component in a file, as a study names it."""

    file: Path
    kind: str
    name: str

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes of a catalogue entry."""
        part = {"file": str(self.file.resolve()), "name": self.name}
        return {"batching": {self.kind: part}} if self.kind in BATCHING_KINDS else {self.kind: part}


def find_component(file: Path, name: str | None = None) -> Named:
    """Find the component of a file; of several, the one called ``name``."""
    try:
        declared = components_in(file)
    except NotAccepted as error:
        raise UserError(str(error).removeprefix("is ")) from None
    found = [Named(file, kind, each) for kind, of_kind in declared.items() for each in of_kind]
    chosen = [each for each in found if name in (None, each.name)]
    if len(chosen) != 1:
        accepted = "one class with @component(NAME)" if not found else ", ".join(each.name for each in found)
        raise UserError(
            f"{file}: has {len(chosen)} components{f' called {name}' if name else ''}; accepted: {accepted}"
        )
    return chosen[0]


def read_base(study: Path | None, model: str | None, gpus: int, out: Path) -> dict[str, Any]:
    """Read the study whose model, problems, training and statistics a judgement takes; ``model`` has one written."""
    if model is None:
        return read_study_file(study or _DEFAULT)
    if study is not None:
        raise UserError("--model: is given with --study; accepted: one of them")
    file = out / "model.yaml"
    if not file.exists():
        write_new_study(file, model, gpus, 80, None)
    return read_study_file(file)


@dataclass(frozen=True)
class Judgement:
    """A comparison of a component with a reference method.

    Attributes:
        base: the study whose model, problems, training and statistics it takes.
        against: a method of the catalogue, or a component in another file.
        out: directory of the results; another judgement there uses the same trainings of the reference.
        margin: differences within it are equivalent, in points.
        seeds: at most.
        minutes: at most; the seeds that are trained by then decide.
        cores: for all jobs together; None for all.
    """

    component: Named
    base: Mapping[str, Any]
    against: str | Named
    out: Path
    margin: float = 2.0
    seeds: int = 16
    minutes: float | None = None
    cores: int | None = None

    @property
    def reference(self) -> str:
        """The reference method's name in the study."""
        return self.against if isinstance(self.against, str) else self.against.name

    @property
    def method(self) -> str:
        """The component's method's name in the study."""
        return self.component.name

    def content(self, seeds: Any) -> dict[str, Any]:
        """The study: reference, component and both controls."""
        parent = self.against if isinstance(self.against, str) else "dapo"
        title = self.component.name.replace("_", " ").capitalize()
        mine = {"extends": parent, "title": title, **self.component.changes}
        methods: dict[str, Any] = {self.reference: {}} if isinstance(self.against, str) else {
            self.reference: {"extends": parent, **self.against.changes}
        }  # fmt: skip
        steps = self.base["training"]["steps"]
        controls = {
            "delta_random_lambda": {},
            parent + _HALF: {"extends": parent, "title": "Half the steps", "training": {"steps": steps // 2}},
        }
        return {
            **{
                key: value for key, value in self.base.items() if key not in ("diagnostics", "decoding", "registration")
            },
            "study": f"judge_{self.method}",
            "folder": f"studies/{self.method}",
            "title": f"{title} against {self.reference}",
            "question": f"Is {self.method} of {self.component.file.name} better than {self.reference}?",
            "seeds": seeds,
            "methods": {**methods, self.method: mine, **controls},
            "reference_method": self.reference,
            "controls": {"positive": parent + _HALF, "negative": "delta_random_lambda"},
        }

    def check(self) -> None:
        """Refuse names that would mean two things, and what the study refuses, before anything is run."""
        if self.method in load_catalogue() or self.method == self.reference:
            accepted = "another name in @component"
            raise UserError(
                f"{self.component.file}: its component has the name {self.method} of a method; accepted: {accepted}"
            )
        Study.resolve(self.content([1]), "rlvr-bench judge")

    def passes_checks(self) -> bool:
        """Try the component on small inputs, and print what was found; losses alone have checks."""
        if self.component.kind != "loss":
            print(f"checks: none for a component of kind {self.component.kind.replace('_', ' ')}")
            return True
        from rlvr.diagnostics.loss_checks import check_loss, failed, printed

        study = Study.resolve(self.content([1]), "rlvr-bench judge")
        method = compose(study.methods[self.method], self.method, study.training[self.method].max_new_tokens)
        findings = check_loss(method.loss, method.aggregation)
        print(*printed(findings), sep="\n", flush=True)
        return not failed(findings)

    def contrast(self) -> Contrast | None:
        """Train one seed of component and reference, and measure the angle between their gradients."""
        content = self.content([1])
        both = {name: content["methods"][name] for name in (self.reference, self.method)}
        run_study({**content, "methods": both, "controls": None}, self.out, self.cores, "runs")
        runs = self.out / "results/runs"
        model = next(iter(content["models"]))
        mine, other = (MeasuredRun.read(runs / f"{model}-{name}-s1") for name in (self.method, self.reference))
        return estimate_contrast(model, self.method, [mine], self.reference, [other], 0.95)

    def decide(self, started: float) -> Comparison:
        """Train seeds look by look until the comparison and the harm of the control are decided, or the budget ends."""
        looks: list[int] = []
        for seeds in [look for look in LOOKS if look < self.seeds] + [self.seeds]:
            before = time.monotonic()
            looks.append(seeds)
            design = {"at_most": self.seeds, "looks": looks, "margin": self.margin}
            run_study(self.content(design), self.out, self.cores)
            decided = Comparisons.read(self.directory / "comparisons.json")
            rows = {row.method: row for row in decided.comparisons if self._is_verdict(row)}
            asked = [rows[self.method], *(rows[name] for name in rows if name.endswith(_HALF))]
            if all(row.verdict not in (Verdict.UNDECIDED, Verdict.NO_CONTRAST) for row in asked):
                break
            now = time.monotonic()
            if self.minutes is not None and now - started + (now - before) > 60 * self.minutes:
                print(f"the next look would take longer than the {self.minutes:g} minutes", file=sys.stderr)
                break
        return rows[self.method]

    def _is_verdict(self, row: Comparison) -> bool:
        return row.against == self.reference and row.benchmark == ALL_BENCHMARKS

    def fell(self) -> int:
        """The number of the component's seeds that fell, as the main table counts them."""
        table = pd.read_csv(self.directory / "tables/main.csv").set_index("method")
        return int(table["fell"][self.method])

    @property
    def directory(self) -> Path:
        """The directory of the study's own results."""
        return self.out / "results/studies" / self.method


def contrast_words(contrast: Contrast | None, reference: str) -> tuple[str, bool]:
    """Say how far the updates are from the reference's, and whether a study could tell them apart."""
    if contrast is None:
        return f"contrast: not measured, for the rollouts or the settings differ from {reference}'s", True
    angle = f"your update is {contrast.degrees:.1f} degrees from {reference}'s on one seed"
    floor = f"random token weights are {contrast.floor_degrees:.1f}"
    if contrast.is_above_floor:
        return f"contrast: {angle}; {floor}", True
    alike = f"your update is {reference}'s to {contrast.degrees:.1f} degrees ({floor})"
    return f"contrast: {alike}: no study of this model can tell them apart", False


def verdict_line(row: Comparison, contrast: Contrast | None, fell: int, minutes: float) -> str:
    """The verdict in one line; ``fell`` seeds ended below their base model or lost what they had gained."""
    words = {
        Verdict.BETTER: "better than",
        Verdict.WORSE: "worse than",
        Verdict.EQUIVALENT: "equivalent to",
    }.get(row.verdict, "not decided against")
    interval = row.confidence_interval
    between = f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    effect = row.minimum_detectable_effect
    parts = [
        f"{row.method}: {words} {row.against}, {100 * row.difference:+.1f} points{between}",
        f"{row.seeds} seeds",
        *([f"MDE {100 * effect:.1f}"] if effect is not None else []),
        *([f"contrast {contrast.degrees:.1f} degrees"] if contrast else []),
        f"{fell} fell",
        f"{minutes:.1f} minutes",
    ]
    return "; ".join(parts)
