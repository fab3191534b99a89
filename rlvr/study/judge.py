"""The verdict on a component in one file: checks, contrast on one seed, then seeds until the comparison is certain."""

import math
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from typer import Option

from evals.core.comparisons import Comparison, Comparisons, Contrast, Verdict
from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json
from evals.core.manifest import read_manifest
from evals.core.records import ALL_BENCHMARKS
from evals.scores.contrast import MeasuredRun, estimate_contrast
from evals.statistics.robust import share_interval
from evals.tables import numbers
from rlvr.methods.components import part_with
from rlvr.methods.method import compose
from rlvr.study.catalogue import load_catalogue
from rlvr.study.evaluation import run_study
from rlvr.study.evidence import known_to_show
from rlvr.study.method_pages import declared_in
from rlvr.study.new_study import write_new_study
from rlvr.study.source_files import CONFIG
from rlvr.study.study import Study
from rlvr.study.study_file import extend, read_study_file

LOOKS = (6, 9, 12, 15)
"""Numbers of seeds: each of the three base models of the default study has as many of them."""
_DEFAULT = CONFIG / "config.yaml"
_EXTENDED = "dapo"
"""The entry of the catalogue that a component in a file changes, where the reference is in a file too."""
_RANDOM_WEIGHTS = "delta_random_lambda"
"""The entry that is DAPO but for random token weights."""


@dataclass(frozen=True)
class Named:
    """A component in a file, as a study names it."""

    file: Path
    kind: str
    name: str

    @property
    def title(self) -> str:
        """The name in words, for a page."""
        return self.name.replace("_", " ").capitalize()

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes of a catalogue entry."""
        part = {"file": str(self.file.resolve()), "name": self.name}
        within = part_with(self.kind)
        return {within: {self.kind: part}} if within else {self.kind: part}


def find_component(file: Path, name: str | None = None) -> Named:
    """Find the component of a file; of several, the one called ``name``."""
    components = [Named(file, kind, of_kind) for kind, names in declared_in(file).items() for of_kind in names]
    chosen = [component for component in components if name in (None, component.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(component.name for component in components)
    accepted = f"--name with one of {names}" if names else "a class with @component(NAME) (docs/your_method.md)"
    number = f"{len(chosen) or 'no'} component{'s' * (len(chosen) > 1)}{f' called {name}' if name else ''}"
    raise UserError(f"{file}: has {number}; accepted: {accepted}")


def read_base(study: Path | None, model: str | None, gpus: int, out: Path) -> dict[str, Any]:
    """Read the study whose model, problems, training and statistics a judgement takes; ``model`` has one written."""
    if model is None:
        return read_study_file(study or _DEFAULT)
    if study is not None:
        raise UserError("--model: is given with --study; accepted: one of them")
    directory = Path(model).expanduser().resolve()
    words = re.sub(r"\W+", "_", directory.name if directory.exists() else model).strip("_").lower()
    file = out / f"{words}_on_{gpus}_gpus.yaml"
    if not file.exists():
        write_new_study(file, model, gpus, 80, None)
    base = read_study_file(file)
    (source,) = base["models"].values()
    if source.get("id", source.get("path")) not in (model, str(directory)):
        raise UserError(f"{file}: has another model than {model}; accepted: another directory as --out")
    return base


@dataclass(frozen=True)
class Judgement:
    """A comparison of a component with a reference method.

    Attributes:
        base: the study whose model, problems, training and statistics it takes.
        against: a method of the catalogue, or a component in another file.
        out: directory of the results; another judgement there uses the same training runs of the reference.
        margin: differences within it are equivalent, in points.
        seeds: the largest number of seeds.
        minutes: the time budget; no look is begun that would exceed it.
        cores: the number of cores for all jobs together; None for all.
    """

    component: Named
    base: Mapping[str, Any]
    against: str | Named
    out: Path
    margin: float = 2.0
    seeds: int = 15
    minutes: float = math.inf
    cores: int | None = None

    @property
    def reference(self) -> str:
        """The reference method's name in the study."""
        return self.against if isinstance(self.against, str) else self.against.name

    @property
    def method(self) -> str:
        """The component's method's name in the study."""
        return self.component.name

    @property
    def harmful(self) -> str:
        """The name of the control that trains half as long as the reference method."""
        return f"{self.reference}_half_steps"

    @property
    def harmless(self) -> str:
        """The name of the control that is the reference method but for random token weights."""
        return _RANDOM_WEIGHTS if self.against == _EXTENDED else f"{self.reference}_random_weights"

    def number(self) -> int:
        """Count this judgement among those of the directory against the same reference, whose runs they share.

        A file that was judged before keeps its number; changed bytes are another judgement.
        """
        path, against = self.out / "judgements.json", self.against
        bytes_of = [self.component.file, *([against.file] if isinstance(against, Named) else [])]
        entry = {"component": self.method, "against": self.reference, "sha256": [*map(sha256_file, bytes_of)]}
        entries = read_json(path)["judgements"] if path.exists() else []
        if entry not in entries:
            entries.append(entry)
            write_json(path, {"judgements": entries})
        alike = [row for row in entries if row["against"] == self.reference]
        return [row for row in alike if row["sha256"][1:] == entry["sha256"][1:]].index(entry) + 1

    def content(self, seeds: Any, number: int = 1) -> dict[str, Any]:
        """The study: reference, component and both controls; of the judgement with a ``number``."""
        title, against = self.component.title, self.against
        if isinstance(against, str):
            of_reference = {"extends": against}
            title_of_reference = load_catalogue().get(against, {}).get("title", against)
        else:
            title_of_reference = against.title
            of_reference = {"extends": _EXTENDED, "title": title_of_reference, **against.changes}
        weights = load_catalogue()[_RANDOM_WEIGHTS]["token_weights"]
        random = {**of_reference, "title": f"{title_of_reference}, random weights", "token_weights": weights}
        half = {"training": {"steps": self.base["training"]["steps"] // 2}}
        methods = {
            self.reference: {} if isinstance(against, str) else of_reference,
            self.method: {"extends": of_reference["extends"], "title": title, **self.component.changes},
            self.harmless: {} if self.harmless == _RANDOM_WEIGHTS else random,
            self.harmful: {**of_reference, "title": f"{title_of_reference}, half the steps", **half},
        }
        judged = {
            "study": f"judge_{self.method}",
            "folder": f"studies/{self.method}",
            "title": f"{title} against {title_of_reference}" + (f", judgement {number}" if number > 1 else ""),
            "question": f"Is {self.method} of {self.component.file.name} better than {title_of_reference}?",
            "seeds": seeds,
            "methods": methods,
            "reference_method": self.reference,
            "controls": {"positive": self.harmful, "negative": self.harmless},
        }
        return extend(self.base, judged)

    def study(self) -> Study:
        """Resolve the study with one seed; refuse names that would mean two things, and what the study refuses."""
        in_files = [(self.component, [self.reference, self.harmful, self.harmless])]
        in_files += [(self.against, [self.method])] if isinstance(self.against, Named) else []
        for component, taken in in_files:
            if component.name in (*load_catalogue(), *taken):
                message = f"its component has the name {component.name} of another method"
                raise UserError(f"{component.file}: {message}; accepted: another name in @component")
        return Study.resolve(self.content([1]), "rlvr-bench judge")

    def passes_checks(self, study: Study) -> bool:
        """Try the component on small inputs, and print what was found; losses and aggregations have checks."""
        if self.component.kind not in ("loss", "aggregation"):
            print(f"checks: none for a component of kind {self.component.kind.replace('_', ' ')}")
            return True
        from rlvr.methods.loss_checks import check_loss, print_findings

        both = (self.method, self.reference)
        mine, other = (compose(study.methods[name], name, study.training[name].max_new_tokens) for name in both)
        return print_findings(check_loss(mine.loss, mine.aggregation, {self.reference: other}))

    def contrast(self) -> Contrast | None:
        """Train one seed of component and reference, and measure the angle between their gradients."""
        content = self.content([1])
        both = {name: content["methods"][name] for name in (self.reference, self.method)}
        run_study({**content, "methods": both, "controls": None}, self.out, self.cores, ["runs"])
        runs = self.out / "results/runs"
        model = next(iter(content["models"]))
        mine, other = (MeasuredRun.read(runs / f"{model}-{name}-s1") for name in (self.method, self.reference))
        return estimate_contrast(model, self.method, [mine], self.reference, [other], 0.95)

    def decide(self, started: float) -> dict[str, Comparison]:
        """Train seeds look by look until the comparison and the harm of the control are decided, or the budget ends.

        Returns the comparison of every method with the reference.
        """
        looks, nth = [*(look for look in LOOKS if look < self.seeds), self.seeds], self.number()
        level = {"level": 5.0 / nth} if nth > 1 else {}
        if level:
            err = f"it may err in {5 / nth:.2g} %, not 5"
            print(f"judgement {nth} here against the same runs of {self.reference}: {err}", flush=True)
        rows: dict[str, Comparison] = {}
        seconds_of_seed = 0.0  # of all methods, by the look before
        for number, seeds in enumerate(looks):
            before, added = time.monotonic(), seeds - (looks[number - 1] if number else 0)
            least = 0.0 if number else self.first_seconds(seeds)
            if least and before - started + least > 60 * self.minutes:
                words = f"the first look, at {seeds} seeds, needs about {least / 60:.2g} minutes of training"
                print(f"{words}: it ends after --minutes {self.minutes:g}, and is taken all the same", file=sys.stderr)
            if before - started + added * seconds_of_seed > 60 * self.minutes:
                late = f"stopped: training {seeds} seeds would take longer than --minutes {self.minutes:g}"
                print(late, file=sys.stderr)
                break
            design = {"at_most": self.seeds, "looks": looks[: number + 1], "margin": self.margin, **level}
            run_study(self.content(design, nth), self.out, self.cores)
            compared = Comparisons.read(self.directory / "comparisons.json")
            to_reference = [row for row in compared.comparisons if row.against == self.reference]
            rows = {row.method: row for row in to_reference if row.benchmark == ALL_BENCHMARKS}
            asked = (rows[self.method], rows[self.harmful])
            if not any(row.is_open for row in asked):
                break
            seconds_of_seed = (time.monotonic() - before) / added
        if not rows:
            raise UserError(f"--minutes: the {self.minutes:g} are over before the first look; the same command goes on")
        return rows

    def first_seconds(self, seeds: int) -> float:
        """Estimate what the missing runs of some seeds take, by those of :meth:`contrast`; 0 without these."""
        runs, (model, *_) = self.out / "results/runs", self.base["models"]
        measured = [runs / f"{model}-{name}-s1/manifest.json" for name in (self.method, self.reference)]
        if not all(path.exists() for path in measured):
            return 0.0
        mine, other = (read_manifest(path, "run").details["seconds_steps"] for path in measured)
        each = {self.method: mine, self.reference: other, self.harmless: other, self.harmful: other / 2}
        cells = [(f"{model}-{name}-s{seed}", each[name]) for name in each for seed in range(1, seeds + 1)]
        missing = sum(seconds for run, seconds in cells if not (runs / run / "manifest.json").exists())
        return float(missing / (self.cores or len(os.sched_getaffinity(0))))

    @property
    def directory(self) -> Path:
        """The directory of the study's own results."""
        return self.out / "results/studies" / self.method


def contrast_words(contrast: Contrast | None, reference: str) -> str:
    """Say how far the updates are from the reference's, and whether a study could tell them apart."""
    if contrast is None:
        return f"contrast: not measured, for the rollouts or the settings differ from {reference}'s"
    floor = f"random token weights: {contrast.floor_degrees:.1f}"
    if contrast.is_absent:
        alike = f"your update has the same direction as {reference}'s, {contrast.degrees:.1f} degrees apart ({floor})"
        return f"contrast: {alike}: no study of this model can tell them apart"
    return f"contrast: your update is {contrast.degrees:.1f} degrees from {reference}'s on one seed; {floor}"


def fell_words(row: Comparison) -> str:
    """Say how many runs fell, the interval of the share, and what that is beside the reference."""
    if row.fell is None or row.against_fell is None:
        return "falls not known"
    low, high = share_interval(row.fell, row.seeds)
    share = f"{row.fell} of {row.seeds} fell [{100 * low:.0f}, {100 * high:.0f}]"
    if not row.fell and not row.against_fell:
        return share
    return f"{share}, {row.against} {row.against_fell} of {row.against_seeds}: {row.falls or 'no difference shown'}"


def verdict_line(row: Comparison, table: pd.DataFrame, minutes: float) -> str:
    """Say the verdict in one line, with contrast, falls and cost from the main table."""
    known = {Verdict.BETTER: "better than", Verdict.WORSE: "worse than", Verdict.EQUIVALENT: "equivalent in score to"}
    words = known.get(row.verdict, "not decided against")
    interval = row.confidence_interval
    between = f" [{numbers.points(interval[0])}, {numbers.points(interval[1])}]" if interval else ""
    effect = row.minimum_detectable_effect
    tokens = table["tokens_generated"]
    degrees = table["contrast_degrees"][row.method] if "contrast_degrees" in table else None
    parts = [
        f"{row.method}: {words} {row.against}, {numbers.points(row.difference)} points{between}",
        f"{row.seeds} seeds",
        *([f"MDE {100 * effect:.1f}"] if effect is not None else []),
        *([f"contrast {degrees:.1f} degrees"] if pd.notna(degrees) else []),
        fell_words(row),
        f"{tokens[row.method] / tokens[row.against]:.2g} times the tokens",
        f"{minutes:.1f} minutes",
    ]
    return "; ".join(parts)


def judge(
    file: Path,
    name: str | None = None,
    against: str = "dapo",
    study: Path | None = None,
    model: str | None = None,
    gpus: Annotated[int, Option(min=0)] = 1,
    margin: Annotated[float, Option(min=0.01, max=100)] = 2.0,
    seeds: Annotated[int, Option(min=2)] = 15,
    minutes: Annotated[float, Option(min=0)] = 20,
    out: Path = Path("judge"),
    cores: Annotated[int | None, Option(min=1)] = None,
    go_on: bool = False,
    checks_only: bool = False,
) -> None:
    """Compare a loss or another component of your own, in one file, with a method: checks, verdict, page.

    First checks that take seconds, then the angle between the updates on one seed, then seeds until the verdict is
    better, worse or equivalent, or the time is over. The file is your code: it runs outside any sandbox. The same
    command continues a comparison that was interrupted.

    Args:
        file: Python with a class that has @component(NAME) (docs/your_method.md).
        name: name of the component, if the file has several.
        against: method of the catalogue, or another FILE.py.
        study: study that gives model, problems and training settings; default: config/config.yaml.
        model: pretrained model in place of the study's: OWNER/NAME on the Hub, or a directory.
        gpus: with --model: number of GPUs to use; 0: the CPU.
        margin: margin of equivalence, in percentage points.
        seeds: largest number of seeds.
        minutes: time budget; no further round of seeds is started if it would not finish in time.
        out: directory of all results; another file that is judged there uses the same runs of the reference.
        cores: number of cores for all jobs together; default: all.
        go_on: train even if a check fails, or if the angle is too small for any difference to be found.
        checks_only: end after the checks, which take seconds.
    """
    started = time.monotonic()
    component = find_component(file, name)
    reference = find_component(Path(against)) if against.endswith(".py") else against
    base = read_base(study, model, gpus, out)
    judgement = Judgement(component, base, reference, out.resolve(), margin, seeds, minutes, cores)
    resolved = judgement.study()
    print(f"{file}: {component.kind.replace('_', ' ')} {component.name}, against {judgement.reference}")
    if not judgement.passes_checks(resolved) and not go_on:
        raise UserError(f"{file}: a check fails, as said above; mend it, or go on with --go-on")
    if checks_only:
        return
    contrast = judgement.contrast()
    print(contrast_words(contrast, judgement.reference), flush=True)
    if contrast is not None and contrast.is_absent and not go_on:
        print("ended before the seeds; --go-on trains them all the same")
        return
    rows = judgement.decide(started)
    if not rows[judgement.harmful].is_harm:
        print(f"control: {judgement.harmful} was not found worse, so differences may be overlooked here")
    table = pd.read_csv(judgement.directory / "tables/main.csv").set_index("method")
    print(verdict_line(rows[judgement.method], table, (time.monotonic() - started) / 60))
    if said := known_to_show(resolved):
        print(said)
    print(judgement.directory / "report.html", flush=True)
