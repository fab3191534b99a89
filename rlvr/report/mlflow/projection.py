"""The MLflow runs of a study, made anew from its files: deleted, and logged with one batch a run.

A run with the tag ``rlvr.result`` is ours; all others are the user's own and stay. Methods show means over the seeds
that have finished, and say so while some have not: MLflow loads a hundred runs at first, and would average those.
"""

import csv
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, ViewType
from mlflow.entities import Run as MlflowRun
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_parquet, write_json
from evals.core.records import BASE, Chosen, Condition, ProblemFile, Run, conditions_of, read_runs
from evals.core.single_writer import is_held
from evals.results import read_results
from rlvr.report.mlflow.store import Store, user_name
from rlvr.report.mlflow.values import (
    PROBLEMS_IN_TABLE,
    first_responses,
    flatten,
    metrics_of_steps,
    scores_of,
    single_metrics,
)
from rlvr.report.provenance import StudyName, read_run_manifest, run_directory
from rlvr.runs.progress import METRICS_SO_FAR, PARAMETERS

_RESULT_TAG, _MADE_TAG, _NOTE_TAG = "rlvr.result", "rlvr.made_from", "mlflow.note.content"
_VIEW_TAG = "mlflow.sharedViewState."  # of MLflow 3.17: addresses open a view that end in viewStateShareKey=KEY
CURVES, SCORES = "rlvr-curves", "rlvr-scores"
UNJUDGED = "train/unjudged_responses"  # of a whole training, where its metrics count them
_AVERAGE = re.compile(r"^(.+)_(avg_at_\d+)$")  # a column of the main table
_NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?$")
_ENDINGS = (".md", ".csv", ".tex", ".png", ".svg", ".html")
_PAGES = [  # stage and name of a run, table that describes it and how many of its sections, files
    ("overview", "tables and figures", "tables/main.md", 1, ("tables/*", "figures/*")),
    (
        "phenomena",
        "claims of the papers",
        "tables/phenomena.md",
        2,
        ("**/phenomena*", "figures/*/*", "diagnostics/*/*"),
    ),
    ("decoding", "decoding with two models", "decoding/tables/decoding.md", 2, ("decoding.html", "decoding/*s/*")),
]
# Filter and order of a view: without any of these keys MLflow takes what the user had last.
_VIEW: dict[str, Any] = {
    "lifecycleFilter": "Active",
    "startTime": "ALL",
    "modelVersionFilter": "All Runs",
    "datasetsFilter": [],
}
_VIEW |= {"searchFilter": "tags.view = 'curves'", "orderByKey": "attributes.start_time", "orderByAsc": False}
_SECTIONS = [{"uuid": name, "name": name, "display": True, "isReordered": True} for name in ("eval/all", "train")]
_CURVES = {**_VIEW, "runsHiddenMode": "SHOW_ALL", "groupBy": None, "isAccordionReordered": True}
_CURVES |= {"compareRunCharts": [], "compareRunSections": _SECTIONS}  # MLflow adds a chart for every metric


def studies_of(results: Path) -> list[Path]:
    """The directories of the studies below results/ that were started."""
    sheets = [results / "runs.json", *sorted(results.glob("studies/*/runs.json"))]
    return [sheet.parent for sheet in sheets if sheet.exists() and sheet.with_name("study.json").exists()]


def track(results: Path, study: Path, out: Path) -> None:
    """Show a study in MLflow, and write how many runs it has there.

    Args:
        results: results/, where runs, samples and grades lie.
        study: the directory of its tables and figures.
    """
    number = project(study, results, Store.of(results))
    write_json(out, {"runs": number})
    print(f"MLflow runs: {number}")


def project(own: Path, directory: Path, store: Store) -> int:
    """Make the runs anew of the study whose tables lie in ``own``, if a file has changed since; returns their number.

    A training that cannot be read keeps no other from being shown; its error is raised at the end.
    """
    runs = read_runs(own / "runs.json")
    with store.writing(60 + 2 * len(runs)) as client:
        study = _Study(client, store, own, directory)
        state = study.state(runs)
        if study.experiment.tags.get(_MADE_TAG) == state:
            return len(study.shown_runs())
        client.set_experiment_tag(study.experiment.experiment_id, _MADE_TAG, "unfinished")
        for shown in study.shown_runs():
            store.delete(client, shown)
        for condition in reversed(conditions_of(runs)):  # MLflow lists the newest first
            frames = list[pd.DataFrame]()
            for run in condition.runs:
                try:
                    study.log_training(run, frames)
                except UserError as error:
                    study.problems.append(error)
            study.log_method(condition, frames)
        study.log_files()
        study.save_views()
        if study.problems:
            raise study.problems[0]
        client.set_experiment_tag(study.experiment.experiment_id, _MADE_TAG, state)
        return len(study.shown_runs())


class _Study:
    """A study and its experiment; it has results once every training is finished and its tables are written."""

    def __init__(self, client: MlflowClient, store: Store, own: Path, directory: Path) -> None:
        named = StudyName.read(own / "study.json")
        self.client, self.name, self.own, self.directory = client, named.study, own, directory
        self.experiment, self.results = store.experiment(client, self.name), None
        runs, scores = read_runs(own / "runs.json"), [own / "scores" / f"{name}.json" for name in named.benchmarks]
        manifests = [run_directory(run, directory) / "manifest.json" for run in runs]
        self.chosen, self.problems, self.counts_unjudged = dict[str, Chosen](), list[UserError](), False
        try:
            self.chosen |= {choice.run: choice for choice in map(Chosen.read, directory.glob("runs/*/chosen.json"))}
            if all(path.exists() for path in (own / "tables/main.csv", *scores, *manifests)):
                self.results = read_results(runs, scores, own / "comparisons.json")
        except UserError as error:
            self.problems.append(error)

    def shown_runs(self) -> list[MlflowRun]:
        """All runs of the experiment that this package made."""
        runs, token = list[MlflowRun](), None
        while token != "":
            number = self.experiment.experiment_id
            page = self.client.search_runs([number], "", ViewType.ACTIVE_ONLY, 1000, page_token=token)
            runs, token = [*runs, *page], page.token or ""
        return [run for run in runs if _RESULT_TAG in run.data.tags]

    def files(self, patterns: Iterable[str]) -> list[Path]:
        """Tables, figures and pages."""
        return [path for each in patterns for path in sorted(self.own.glob(each)) if path.suffix in _ENDINGS]

    def state(self, runs: Sequence[Run]) -> str:
        """A hash of the names, times and sizes of all files that are shown, and of which trainings run."""
        folders = [run_directory(run, self.directory) for run in runs]
        patterns = [pattern for *_, some in _PAGES for pattern in some]
        paths = [self.own / "runs.json", *sorted(self.directory.glob("runs/*/chosen.json")), *self.files(patterns)]
        paths += [folder / name for folder in folders for name in ("manifest.json", METRICS_SO_FAR)]
        states = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()]
        return fingerprint([states, [is_held(folder / "state") for folder in folders]])

    def log_training(self, run: Run, frames: list[pd.DataFrame]) -> None:
        """Show one seed: its metrics at every step, settings, scores and responses; add the frame of a finished one."""
        folder, seed = run_directory(run, self.directory), "none" if run.seed is None else str(run.seed)
        tags = {"model": run.model, "method": run.method, "seed": seed}
        if not (folder / "manifest.json").exists():
            if (path := folder / METRICS_SO_FAR).exists():
                frame, ended = read_parquet(path, ["step"]), path.stat().st_mtime_ns // 1_000_000
                tags |= {"stage": "train, under way", "view": "curves"}
                status = "RUNNING" if is_held(folder / "state") else "KILLED"
                metrics, settings = metrics_of_steps(frame, ended), frame.attrs.get(PARAMETERS, {})
                self._log(f"{run.run} (under way)", tags, ended, metrics, settings, status=status)
            return
        manifest, is_base = read_run_manifest(run, self.directory), run.method == BASE
        ended = round(1000 * datetime.fromisoformat(manifest.created).timestamp())
        tags |= {"stage": "base_model" if is_base else "train", "fingerprint": manifest.fingerprint}
        tags |= {f"sha256/{name}": value for name, value in manifest.outputs.items() if name.startswith("checkpoint/")}
        tags |= {"checkpoint": (folder / "checkpoint").resolve().as_uri()} if (folder / "checkpoint").exists() else {}
        tags |= {"mlflow.source.git.commit": str(commit)} if (commit := manifest.environment.get("commit")) else {}
        metrics, sets, table = list[Metric](), [] if is_base else ["train"], None
        if "metrics.parquet" in manifest.outputs:
            frames.append(read_parquet(folder / "metrics.parquet", ["step"]))
            metrics += metrics_of_steps(frames[-1], ended)
            if len((unjudged := frames[-1].filter(like="unjudged_")).columns):
                metrics += single_metrics({UNJUDGED: float(unjudged.to_numpy().sum())}, ended)
                self.counts_unjudged = True
        if choice := self.chosen.get(run.run):  # its best policy was chosen by scores along it
            name = f"validation/{choice.benchmark}_avg_at_{choice.samples_per_problem}"
            metrics += [Metric(name, value, ended, int(step)) for step, value in choice.averages.items()]
        if self.results:
            metrics += single_metrics(scores_of(self.results, run), ended)
            sets, table = [*sets, *self.results.benchmarks], first_responses(run, self.results, self.directory)
            pages = (self.own / "responses" / "BENCHMARK" / "index.html").as_posix()
            some = f"`responses.json` has a response to {PROBLEMS_IN_TABLE} problems of each benchmark"
            tags[_NOTE_TAG] = f"{some}, `{pages}` all of them."
        problems = [ProblemFile.of(self.directory / "problems" / name) for name in sets]
        files = {folder / "manifest.json": ""}
        self._log(run.run, tags, ended, metrics, manifest.parameters, problems, files, table)

    def log_method(self, condition: Condition, frames: list[pd.DataFrame]) -> None:
        """Show a method on a model: means over the finished seeds of its steps, and its row of the main table."""
        finished = [run for run in condition.runs if (run_directory(run, self.directory) / "manifest.json").exists()]
        if not finished:
            return
        number = f"{len(finished)} of {len(condition.runs)}"
        tags = {"stage": "method", "model": condition.model, "method": condition.method, "seeds": number}
        ended, metrics = time.time_ns() // 1_000_000, list[Metric]()
        if frames:  # a number is shown where every finished seed has it
            by_step = pd.concat(frames).select_dtypes("number").groupby("step")
            means = by_step.mean().where(by_step.count() == len(finished))
            metrics += metrics_of_steps(means.reset_index(), ended)
        if self.results:
            with open(self.own / "tables/main.csv", encoding="utf-8", newline="") as lines:
                rows = {(row["model"], row["method"]): row for row in csv.DictReader(lines)}
            values = dict[str, float]()
            for key, text in rows[condition.model, condition.method].items():
                if average := _AVERAGE.match(key):
                    values["eval/{}/{}".format(*average.groups())] = 100 * float(text)
                elif key.endswith("_verdict"):
                    tags |= {key: text} if text else {}
                elif _NUMBER.match(text):
                    values[key] = float(text)
            seeds = [next(iter(scores_of(self.results, run).values())) for run in condition.runs]
            values |= {"eval/all/lowest_seed": min(seeds), "eval/all/highest_seed": max(seeds)}
            metrics += single_metrics(values, ended)
        title = condition.title if len(finished) == len(condition.runs) else f"{condition.title} ({number} seeds)"
        self._log(title, tags | {"view": "curves"}, ended, metrics)

    def log_files(self) -> None:
        """Show tables, figures and pages, in a run for each table that describes some."""
        for stage, title, described, sections, patterns in _PAGES:
            if self.results and (self.own / described).exists():
                note = "\n## ".join((self.own / described).read_text(encoding="utf-8").split("\n## ")[:sections])
                files = {path: path.parent.relative_to(self.own).as_posix().strip(".") for path in self.files(patterns)}
                ended = max(path.stat().st_mtime_ns for path in files) // 1_000_000
                self._log(f"{self.name}: {title}", {"stage": stage, _NOTE_TAG: note[:8000]}, ended, files=files)

    def _log(
        self,
        name: str,
        tags: Mapping[str, str],
        ended: int,
        metrics: Sequence[Metric] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
        problems: Sequence[ProblemFile] = (),
        files: Mapping[Path, str] = MappingProxyType({}),
        table: pd.DataFrame | None = None,
        status: str = "FINISHED",
    ) -> None:
        """Make a run, with one batch of its metrics and settings; times are milliseconds since the epoch."""
        tags = {**tags, _RESULT_TAG: name, "study": self.name, "mlflow.runName": name, "mlflow.user": user_name()}
        tags |= {"mlflow.source.name": "rlvr-bench", "mlflow.source.type": "LOCAL"}
        tags |= {f"sha256/problems/{file.name}": file.sha256 for file in problems}
        started = min((metric.timestamp for metric in metrics if settings), default=ended)
        run: str = self.client.create_run(self.experiment.experiment_id, started, tags).info.run_id
        self.client.log_batch(run, metrics, [Param(*item) for item in flatten(settings).items()])
        for file in problems:
            dataset = Dataset(file.name, file.sha256[:16], "local", json.dumps({"uri": file.path}))
            self.client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", file.role)])])
        for path, folder in files.items():
            self.client.log_artifact(run, str(path), folder or None)
        if table is not None and len(table):
            self.client.log_table(run, table, "responses.json")
        if status != "RUNNING":
            self.client.set_terminated(run, status, ended)

    def save_views(self) -> None:
        """Keep both views with the experiment; one that the user has changed in MLflow stays as it is."""
        results, number = self.results, self.experiment.experiment_id
        names = ["all", *results.benchmarks[:19]] if results else []  # a tag holds 5,000 characters
        columns = [f"metrics.`eval/{name}/avg_at_{results.samples_per_problem}`" for name in names if results]
        order = {"searchFilter": "tags.stage LIKE 'train%'", "orderByKey": (columns or ["attributes.start_time"])[0]}
        columns += [f"metrics.`{UNJUDGED}`"] if self.counts_unjudged else []
        scores = {**_VIEW, **order, "selectedColumns": [*columns, "attributes.`Duration`"]}
        made = self.experiment.creation_time  # MLflow dates a view that somebody changes
        for key, name, state in ((CURVES, "Curves by method", _CURVES), (SCORES, "Final scores", scores)):
            view = {"name": name, "createdAt": made, "updatedAt": made, "state": json.dumps(state)}
            old = self.experiment.tags.get(_VIEW_TAG + key)
            if old is None or json.loads(old)["updatedAt"] == made:
                self.client.set_experiment_tag(number, _VIEW_TAG + key, json.dumps(view))
