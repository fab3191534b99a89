"""The results that people look at: which tables and figures each study has, and what they are made from."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.config.named_study import NamedStudy
from evals.core.errors import UserError
from evals.core.files import canonical_json, sha256_file
from evals.core.run_spec import VERL
from evals.scores.registration import REGISTRATIONS
from rlvr.study.plan import Plan
from rlvr.study.rules import words
from rlvr.study.source_files import REPOSITORY, as_input, code_of
from rlvr.study.studies import BEST, named_study_files, read_named_study, score_points

REFERENCE = as_input(REPOSITORY / "config/reference")
_TEMPLATES = as_input(REPOSITORY / "rlvr/report/templates")
FIGURES = {
    "scores": "evals.figures.results",
    "differences": "evals.figures.results",
    "profiles": "evals.figures.results",
    "cost_curves": "evals.figures.efficiency",
    "compute_performance": "evals.figures.efficiency",
    "training_curves": "rlvr.report.curves",
    "reward_curves": "rlvr.report.curves",
    "score_curves": "rlvr.report.curves",
    "validation_curves": "rlvr.report.curves",
}
TABLES = {
    "by_seed": "evals.tables.by_seed",
    "robust": "evals.tables.robust",
    "efficiency": "evals.tables.efficiency",
    "audit": "evals.tables.audit",
    "checkpoints": "evals.tables.checkpoints",
    "paper_vs_ours": "evals.tables.published",
}
"""The figures, and the tables beside the main one, with the modules that make them."""


def page_templates(*own: str) -> list[str]:
    """The files that a page is made from: those of every page and its ``own``."""
    return [f"{_TEMPLATES}/{name}" for name in ("base.html.jinja", "macros.html.jinja", "report.css", *own)]


def _name_trainings(options: dict[str, Any]) -> None:
    """Replace the files of trainings by the option that says where trainings are."""
    options.pop("manifests", None)
    if options.pop("metrics", None):
        options["training"] = "results/runs"


@dataclass(frozen=True)
class Displayed:
    """The displayed results of each study: tables, figures, pages."""

    plan: Plan

    @cached_property
    def evidence(self) -> str:
        """A sentence on the evidence that the numbers give."""
        study = self.plan.study
        if not study.methods:
            names = "; ".join(map(study.model_title, study.config.models))
            return (
                f"Evaluated without training: {names}. Intervals are over problems; the numbers say nothing about other"
                " trainings of such a model."
            )
        if self.plan.imported and study.engine != VERL:
            return (
                "A pretrained model, trained on one machine: this shows what was measured on it. It is no evidence"
                " about other models."
            )
        if study.existing_models:
            return (
                f"Trained by {study.engine}. The tables say what was measured; what the study departs from its paper"
                " in stands in its file."
            )
        if self.plan.read_benchmarks or "columns" in study.training_settings:
            return (
                "Real problems and a tiny model made from scratch on arithmetic: this shows that they pass"
                " through the machinery. It is no evidence about any model's ability."
            )
        return (
            "Generated problems and a tiny model made from scratch: this shows how the methods behave on this task, and"
            " that the machinery works. It is no evidence about models of billions of parameters."
        )

    def notes(self, folder: str) -> list[str]:
        """The question of a named study, and what its numbers are evidence of."""
        return [self.named_study(folder).question, self.evidence] if folder else [self.evidence]

    def files(self, folder: str, kind: str = "") -> list[str]:
        """The files that people look at of a study: all, or those of a directory (``tables/``, ``figures/``)."""
        own = [f"figures/{name}.png" for name in self.own_figures(folder)] if folder else []
        # A study of models alone has neither training curves nor methods to set side by side.
        methods = bool(self.plan.study.methods)
        tables = ["main", "by_seed", "robust", "efficiency", "audit", "paper_vs_ours"] if methods else ["main", "audit"]
        figures = ["scores", "differences", "profiles", *self.of_trainings] if methods else ["scores"]
        paths = [*own, *(f"tables/{table}.md" for table in tables), *(f"figures/{name}.png" for name in figures)]
        paths += ["tables/checkpoints.md", "figures/validation_curves.png"] if self.choices(folder) else []
        paths += [f"responses/{benchmark}/index.html" for benchmark in self.plan.study.benchmarks]
        paths += ["rollouts/index.html"] if self.keeps_rollouts else []
        paths += ["report.html", "tracking.json"] if methods else []
        return [f"results/{folder}{path}" for path in paths if path.startswith(kind)]

    def choices(self, folder: str) -> list[str]:
        """The choices of the best policies of a study's trainings; none where the last alone is reported."""
        best = f"{folder}{BEST}"
        return self.plan.choices(best) if best in self.plan.studies.best else []

    def tables(self, folder: str) -> list[str]:
        return self.files(folder, "tables/")

    def figures(self, folder: str) -> list[str]:
        return self.files(folder, "figures/")

    @property
    def of_trainings(self) -> list[str]:
        """Names of the figures of trainings that a study with methods has."""
        validated = ["compute_performance"] if self.plan.study.validation_settings else []
        return ["cost_curves", *validated, "training_curves"]

    def own_figures(self, folder: str) -> list[str]:
        """Names of the figures that a named study has and others have not."""
        return ["reward_curves", *(["score_curves"] if f"{folder}steps/" in self.plan.folders else [])]

    def results_inputs(self, folder: str) -> dict[str, Any]:
        """The files that most tables and figures are made from."""
        own = f"results/{folder}"
        return {"scores": self.plan.scores(folder), "comparisons": f"{own}comparisons.json", "runs": f"{own}runs.json"}

    def training_inputs(self, folder: str) -> dict[str, Any]:
        """The same, and the trainings: their manifests stand for the validation, which no rule declares."""
        own = {"metrics": self.plan.metrics(folder), "manifests": self.plan.run_manifests(folder)}
        return {**self.results_inputs(folder), **own}

    def table_inputs(self, folder: str, table: str) -> dict[str, Any]:
        if table == "audit":
            return {"audits": self.plan.audits(folder), "runs": f"results/{folder}runs.json"}
        if table in ("robust", "efficiency"):
            return self.training_inputs(folder)
        best = f"{folder}{BEST}"
        if table == "checkpoints":
            of_best = {f"best_{name}": files for name, files in self.results_inputs(best).items()}
            return self.results_inputs(folder) | of_best | {"choices": self.choices(folder)}
        if table == "paper_vs_ours" and self.choices(folder):  # papers that choose report what they chose
            return self.results_inputs(best)
        return self.results_inputs(folder)

    def table_reference(self, table: str) -> list[str]:
        """The published numbers that a table shows."""
        names = ["published.csv", "settings.yaml"] if table == "paper_vs_ours" else []
        return [f"{REFERENCE}/{name}" for name in names]

    def table_options(self, folder: str, table: str) -> list[str]:
        options = self.table_inputs(folder, table)
        _name_trainings(options)
        if table == "paper_vs_ours":
            options |= {"reference": REFERENCE, "own": self.own_settings()}
        return words(options)

    def table_code(self, table: str) -> list[str]:
        return code_of(TABLES[table])

    def figure_inputs(self, folder: str, figure: str) -> dict[str, Any]:
        if figure in ("cost_curves", "compute_performance"):
            return self.training_inputs(folder)
        if figure == "validation_curves":
            return {"choices": self.choices(folder), "runs": f"results/{folder}runs.json"}
        if figure == "training_curves":
            return {"metrics": self.plan.metrics(folder), "runs": f"results/{folder}runs.json"}
        if figure == "reward_curves":
            folders = self.with_beside(folder)
            metrics = [path for each in folders for path in self.plan.metrics(each)]
            return {"metrics": metrics, "runs": [f"results/{each}runs.json" for each in folders]}
        if figure == "score_curves":
            folders = [folder, f"{folder}steps/"]
            scores = [path for each in folders for path in self.plan.scores(each)]
            return {"scores": scores, "runs": [f"results/{each}runs.json" for each in folders]}
        return self.results_inputs(folder)

    def figure_options(self, folder: str, figure: str) -> list[str]:
        options = self.figure_inputs(folder, figure)
        _name_trainings(options)
        if figure == "reward_curves":
            options["titles"] = [self.named_study(each).title for each in self.with_beside(folder)]
            options["reference_method"] = self.plan.reference_method(folder)
        if figure == "score_curves":
            points = score_points(self.plan.in_folder(folder), self.named_study(folder).score_at or ())
            options["points"] = canonical_json(points)
        return words(options)

    def figure_code(self, figure: str) -> list[str]:
        return code_of(FIGURES[figure])

    @property
    def keeps_rollouts(self) -> bool:
        """Whether the trainings of the studies keep rollouts, and a page shows them."""
        return bool(self.plan.study.methods) and "rollouts_kept_every" in self.plan.execution

    def replays(self, folder: str) -> dict[str, str]:
        """Directory and hash of the manifest of every replayed training, where somebody made them.

        The page of rollouts has them as parameters: as inputs they would make a training that is done again be replayed
        again, too, for a page that shows whatever is there.
        """
        directories = [f"results/diagnostics/{run}" for run in self.plan.trained_runs(folder)]
        found = {directory: Path(directory, "manifest.json") for directory in directories}
        return {directory: sha256_file(path) for directory, path in found.items() if path.is_file()}

    def rollouts_options(self, folder: str) -> list[str]:
        """Options of the page of rollouts: the benchmarks that have a page of responses, and the token tables."""
        replayed = list(self.replays(folder))
        return words({"benchmarks": list(self.plan.study.benchmarks), **({"replayed": replayed} if replayed else {})})

    def compared_tokens(self, folder: str, benchmark: str) -> list[str]:
        """Token tables of the responses to a benchmark, where somebody made them (docs/diagnostics.md)."""
        runs = [run.run for run in self.plan.evaluated_runs(folder)]
        paths = [f"results/diagnostics/{run}/{benchmark}/tokens.parquet" for run in runs]
        return [path for path in paths if Path(path).is_file()]

    def responses_options(self, folder: str, benchmark: str) -> list[str]:
        """Options of a page of responses: the benchmarks that have one, and the token tables."""
        tokens = [path.rpartition("/")[0] for path in self.compared_tokens(folder, benchmark)]
        options: dict[str, Any] = {"benchmarks": list(self.plan.study.benchmarks)}
        options |= {"report": "../../report.html"} if self.plan.study.methods else {}
        options |= {"rollouts": "../../rollouts/index.html"} if self.keeps_rollouts else {}
        return words({**options, **({"tokens": tokens} if tokens else {})})

    def report_options(self, folder: str) -> list[str]:
        """Options of the report: of a named study its heading and figures; registrations."""
        options: dict[str, Any] = {"rollouts": "rollouts/index.html"} if self.keeps_rollouts else {}
        if folder:
            title, own = self.named_study(folder).title, self.own_figures(folder)
            options |= {"title": title, "own_figures": own}
        elif self.plan.study.config.registration is not None:
            options["registrations"] = f"results/{REGISTRATIONS}"
        return words(options)

    def own_settings(self) -> str:
        """The settings behind this study's numbers, in the terms of config/reference/settings.yaml."""
        study = self.plan.study
        sampling = {key: getattr(study.config.evaluation, key) for key in ("temperature", "top_p", "max_new_tokens")}
        models = {name: study.published_name(name) for name in study.config.models}
        prompt = "another than in training" if study.benchmarks_with_another_prompt else "that of training"
        decays = any(training.falling_steps for training in study.training.values())
        best = study.config.best_checkpoint
        checkpoint = f"best {best.benchmark} avg@{best.k}" if best else "last"
        checkpoint += ", after a decay of the learning rate" if decays else ""
        return canonical_json(
            {
                "models": models,
                "methods": study.published_methods,
                "training_problems": study.training_problems,
                "checkpoint": checkpoint,
                "evaluation_prompt": prompt,
                **sampling,
            }
        )

    def named_study(self, folder: str) -> NamedStudy:
        return read_named_study(named_study_files()[folder.split("/")[1]])

    def with_beside(self, folder: str) -> list[str]:
        """The folders that are made together: a named study's, and that of the study it names in ``beside``."""
        folders = [folder]
        for each in folders:
            if each in self.plan.studies.refused:  # and now it is asked for
                raise UserError(self.plan.studies.refused[each])
            other = self.named_study(each).beside
            folders += [f"studies/{other}/"] if other else []
        return folders

    def targets_of(self, name: str) -> list[str]:
        """The files that ``snakemake NAME`` makes: those of a named study and of the one beside it."""
        folders = self.with_beside(f"studies/{name}/")
        return [path for each in folders for path in self.files(each) + self.plan.intermediate(each)]
