"""The MLflow runs of a study, brought up to date by its files: what has changed in each, and last what is gone.

Methods show means over the seeds that have finished, and say so while some have not: MLflow loads a hundred runs at
first, and would average those.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.entities import Metric

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_parquet, write_json
from evals.core.records import BASE, Chosen, Condition, Run, conditions_of, read_runs
from evals.core.single_writer import is_held
from evals.results import Results, read_results
from rlvr.report.examples import first_responses
from rlvr.report.mlflow.store import Store, key_of
from rlvr.report.provenance import StudyName, read_run_manifest, run_directory
from rlvr.runs.job import METRICS_SO_FAR, PARAMETERS

CURVES, SCORES, UNJUDGED = "rlvr-curves", "rlvr-scores", "train/unjudged_responses"
PROBLEMS_IN_TABLE, _LONGEST_TEXT = 10, 4000  # of each benchmark; characters of a response
_MADE_TAG, _NOTE_TAG, _VIEW_TAG = "rlvr.made_from", "mlflow.note.content", "mlflow.sharedViewState."
_RESPONSES = "responses.json"
_ENDINGS = (".md", ".csv", ".tex", ".png", ".svg", ".html")
_PAGES = {  # stage of a run: its name, the table that describes it and how many of its sections, the files
    "overview": ("tables and figures", "tables/main.md", 1, ("tables/*", "figures/*")),
    "claims": (
        "claims of the papers",
        "claims/tables/claims.md",
        2,
        ("claims/*", "claims/tables/*", "claims/figures/*", "claims/tokens/*/*"),
    ),
    "decoding": (
        "decoding with two models",
        "claims/decoding/tables/decoding.md",
        2,
        ("claims/decoding/*", "claims/decoding/*s/*"),
    ),
}
_VIEWS = json.loads(Path(__file__).with_name("views.json").read_text(encoding="utf-8"))


def track(results: Path, study: Path, out: Path) -> None:
    """Show a study, whose tables lie in ``study``, in the MLflow of ``results``; write how many runs it has there."""
    number = project(study, Store(results))
    write_json(out, {"runs": number})
    print(f"MLflow runs: {number}")


def project(study: Path, store: Store) -> int:
    """Bring a study's runs up to date, if a file has changed since; returns their number.

    A run that cannot be read keeps no other from being shown; its error is raised at the end.
    """
    with store.writing():
        shown = _Study(study.resolve(), store)
        tag = partial(store.client.set_experiment_tag, shown.experiment.experiment_id)
        if shown.experiment.tags.get(_MADE_TAG) != (state := shown.state()):
            tag(_MADE_TAG, "unfinished")
            shown.log_all()
            shown.delete_rest()
            made = shown.experiment.creation_time  # MLflow dates a view that somebody changes, and that stays
            for key, content in shown.views().items():
                view = {"name": key, "createdAt": made, "updatedAt": made, "state": json.dumps(content)}
                if json.loads(shown.experiment.tags.get(_VIEW_TAG + key, json.dumps(view)))["updatedAt"] == made:
                    tag(_VIEW_TAG + key, json.dumps(view))
            if shown.errors:
                raise shown.errors[0]
            tag(_MADE_TAG, state)
        return len(store.runs(shown.experiment))


class _Study:
    """What MLflow shows of a study; it has results once every training is finished and its tables are written."""

    results: Results | None = None

    def __init__(self, study: Path, store: Store) -> None:
        named, self.sheet = StudyName.read(study / "study.json"), read_runs(study / "runs.json")
        self.study, self.benchmarks, self.directory = study, named.benchmarks, store.results
        self.store, self.experiment, directory = store, store.experiment(named.study), store.results
        self.before, self.logged = {key_of(run): run for run in store.runs(self.experiment)}, dict[str, str]()
        self.folders = {run: run_directory(run, directory) for run in self.sheet}
        self.finished = {run for run, folder in self.folders.items() if (folder / "manifest.json").exists()}
        self.choices, self.errors = sorted(directory.glob("runs/*/chosen.json")), list[UserError]()

    def log(self, key: str, *shown: Any, **more: Any) -> None:
        """Show what belongs to ``key`` (see :meth:`Store.log`)."""
        more["keeps"] = self.results is None
        self.logged[key] = self.store.log(self.experiment, self.before.get(key), key, *shown, **more)

    def delete_rest(self) -> None:
        """Delete the runs that stand for nothing any more; what is not to be read now keeps the one that it had."""
        kept, is_whole = {*self.logged.values()}, self.results and not self.errors
        known = {*_PAGES, *(run.run for run in self.sheet), *(row.title for row in conditions_of(self.sheet))}
        for run in self.store.runs(self.experiment):
            key = key_of(run)
            if run.info.run_id not in kept and (is_whole or key in self.logged or key not in known):
                self.store.delete(run)

    def files(self, patterns: Sequence[str]) -> list[Path]:
        return [path for pattern in patterns for path in sorted(self.study.glob(pattern)) if path.suffix in _ENDINGS]

    def state(self) -> str:
        """A hash of the names, times and sizes of all files that are shown, and of which runs are under way."""
        paths = [path for *_, patterns in _PAGES.values() for path in self.files(patterns)]
        paths += [folder / name for folder in self.folders.values() for name in ("manifest.json", METRICS_SO_FAR)]
        paths = [path for path in (self.study / "runs.json", *self.choices, *paths) if path.exists()]
        states = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
        return fingerprint([states, [is_held(folder / "state") for folder in self.folders.values()]])

    def log_all(self) -> None:
        """Show every training, method and page; what cannot be read is in ``errors``."""
        chosen = dict[str, Chosen]()
        try:
            chosen |= {choice.run: choice for choice in map(Chosen.read, self.choices)}
            if len(self.finished) == len(self.sheet) and (self.study / "tables/by_seed.csv").exists():
                scores = [self.study / "scores" / f"{name}.json" for name in self.benchmarks]
                self.results = read_results(self.sheet, scores, self.study / "comparisons.json")
        except UserError as error:
            self.errors.append(error)
        for condition in reversed(conditions_of(self.sheet)):  # MLflow lists the newest first
            frames, by_seed = list[pd.DataFrame](), self.results.average(condition).by_seed if self.results else ()
            for number, run in enumerate(condition.runs):
                try:
                    self.log_training(run, chosen.get(run.run), by_seed[number:], frames)
                except UserError as error:
                    self.errors.append(error)
            if finished := len(self.finished.intersection(condition.runs)):
                self.log_method(condition, finished, frames, by_seed)
        for stage, (title, described, sections, patterns) in _PAGES.items():
            if self.results and (self.study / described).exists():
                text = (self.study / described).read_text(encoding="utf-8")
                tags = {"stage": stage, _NOTE_TAG: "\n## ".join(text.split("\n## ")[:sections])[:8000]}
                ended = (self.study / described).stat().st_mtime_ns // 1_000_000
                files = {path.relative_to(self.study).as_posix(): path for path in self.files(patterns)}
                self.log(stage, f"{self.experiment.name}: {title}", tags, ended, files=files)

    def log_training(
        self, run: Run, choice: Chosen | None, average: Sequence[float], frames: list[pd.DataFrame]
    ) -> None:
        """A seed: settings, metrics of every step, scores and responses; appends the metrics of a finished one."""
        folder, metrics, responses = self.folders[run], list[Metric](), pd.DataFrame()
        tags = {"model": run.model, "method": run.method, "seed": "none" if run.seed is None else str(run.seed)}
        if run not in self.finished:
            if (path := folder / METRICS_SO_FAR).exists():
                frame, ended = read_parquet(path, ["step"]), path.stat().st_mtime_ns // 1_000_000
                tags |= {"stage": "train, under way", "view": "curves"}
                settings, status = frame.attrs.get(PARAMETERS, {}), "RUNNING" if is_held(folder / "state") else "KILLED"
                self.log(run.run, f"{run.run} (under way)", tags, ended, _steps(frame, ended), settings, status=status)
            return
        manifest = read_run_manifest(run, self.directory)
        ended = round(1000 * datetime.fromisoformat(manifest.created).timestamp())
        tags |= {"stage": "base_model" if run.method == BASE else "train", "fingerprint": manifest.fingerprint}
        tags |= {f"sha256/{name}": value for name, value in manifest.outputs.items() if name.startswith("checkpoint/")}
        tags |= {"checkpoint": (folder / "checkpoint").as_uri()} if (folder / "checkpoint").exists() else {}
        tags |= {"mlflow.source.git.commit": str(commit)} if (commit := manifest.environment.get("commit")) else {}
        if "metrics.parquet" in manifest.outputs:
            frames.append(frame := read_parquet(folder / "metrics.parquet", ["step"]))
            metrics += _steps(frame, ended)
            if len((unjudged := frame.filter(like="unjudged_")).columns):
                metrics.append(Metric(UNJUDGED, float(unjudged.to_numpy().sum()), ended, 0))
        if choice:  # its best policy was chosen by scores along it
            name = f"validation/{choice.benchmark}_avg_at_{choice.samples_per_problem}"
            metrics += [Metric(name, value, ended, int(step)) for step, value in choice.averages.items()]
        if self.results:
            k, table = self.results.samples_per_problem, pd.read_csv(self.study / "tables/by_seed.csv")
            metrics.append(Metric(f"eval/all/avg_at_{k}", 100 * average[0], ended, 0))
            shown = table[table["run"] == run.run].rename(columns={"average_at_k": f"avg_at_{k}"}).drop(columns="seed")
            for row in shown.to_dict("records"):
                numbers = {str(key): value for key, value in row.items() if isinstance(value, float) and value == value}
                percent = {key: value * (1 if "tokens" in key else 100) for key, value in numbers.items()}
                metrics += [Metric(f"eval/{row['benchmark']}/{key}", x, ended, 0) for key, x in percent.items()]
            arguments = (self.directory, PROBLEMS_IN_TABLE, _LONGEST_TEXT)
            responses = pd.concat([first_responses(run.run, name, *arguments) for name in self.benchmarks])
            pages = self.study / "responses" / "BENCHMARK" / "index.html"
            tags[_NOTE_TAG] = f"`{_RESPONSES}` has the first responses to each benchmark, `{pages}` all of them."
        files: dict[str, Path | str] = {"manifest.json": folder / "manifest.json"}
        if len(responses):
            files[_RESPONSES] = responses.to_json(orient="split", index=False)  # as MLflow's log_table, which appends
            tags["mlflow.loggedArtifacts"] = json.dumps([{"path": _RESPONSES, "type": "table"}])
        self.log(run.run, run.run, tags, ended, metrics, manifest.parameters, files=files)

    def log_method(
        self, condition: Condition, finished: int, frames: Sequence[pd.DataFrame], by_seed: Sequence[float]
    ) -> None:
        """A method on a model: means over the finished seeds of its steps, and its row of the main table."""
        ended, metrics, seeds = time.time_ns() // 1_000_000, list[Metric](), f"{finished} of {len(condition.runs)}"
        tags = {"stage": "method", "view": "curves", "model": condition.model, "method": condition.method}
        if frames:  # a number is shown where every finished seed has it
            by_step = pd.concat(frames).select_dtypes("number").groupby("step")
            metrics += _steps(by_step.mean().where(by_step.count() == finished).reset_index(), ended)
        if self.results:
            table = pd.read_csv(self.study / "tables/main.csv")
            is_own = (table["model"] == condition.model) & (table["method"] == condition.method)
            row = {str(key): value for key, value in table[is_own].iloc[0].dropna().items()}
            tags |= {key: str(value) for key, value in row.items() if key.endswith("_verdict")}
            values = {key: float(value) for key, value in row.items() if not isinstance(value, str)}
            for key in [key for key in values if "_avg_at_" in key]:
                values["eval/{}/avg_at_{}".format(*key.split("_avg_at_"))] = 100 * values.pop(key)
            values |= {"eval/all/lowest_seed": 100 * min(by_seed), "eval/all/highest_seed": 100 * max(by_seed)}
            metrics += [Metric(key, value, ended, 0) for key, value in values.items()]
        title = condition.title if finished == len(condition.runs) else f"{condition.title} ({seeds} seeds)"
        self.log(condition.title, title, tags | {"seeds": seeds}, ended, metrics)

    def views(self) -> dict[str, dict[str, Any]]:
        """Filters, orders and charts of the views, by name."""
        curves, scores = (_VIEWS["every view"] | _VIEWS[name] for name in (CURVES, SCORES))
        if self.results:  # a tag holds 5,000 characters
            names, k = ["all", *self.benchmarks[:19]], self.results.samples_per_problem
            columns = [f"metrics.`eval/{name}/avg_at_{k}`" for name in names]
            scores |= {"orderByKey": columns[0], "selectedColumns": [*columns, *scores["selectedColumns"]]}
        return {CURVES: curves, SCORES: scores}


def metric_name(column: str) -> str:
    """The name of a column of ``metrics.parquet`` in MLflow: ``train/reward_mean``, ``time/seconds_step``."""
    return f"{'time' if column.startswith(('seconds_', 'peak_memory')) else 'train'}/{column}"


def _steps(frame: pd.DataFrame, ended: int) -> list[Metric]:
    """Every number of every step, timed so that the last step is at ``ended``; NaN (not measured) makes no metric."""
    frame = frame.sort_values("step", kind="stable").select_dtypes("number")
    seconds = frame["seconds_step"].fillna(0.0) if "seconds_step" in frame else frame["step"] * 0.0
    timed = frame.assign(ended=ended - 1000 * (seconds.sum() - seconds.cumsum()))
    rows = timed.melt(["step", "ended"]).dropna().to_numpy().tolist()
    return [Metric(metric_name(name), float(value), round(time), int(step)) for step, time, name, value in rows]
