"""The stages that people look at: which tables, figures and pages each study has, and what they are made from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.files import sha256_file
from evals.core.run_spec import VERL
from evals.scores.registration import REGISTRATIONS
from rlvr.stages import figures, pages, tables
from rlvr.stages.stage import Stage
from rlvr.study.doses import doses_of, undosed
from rlvr.study.factorial import cells_of
from rlvr.study.plan import Plan, results_of
from rlvr.study.rates import RATES, rates_of
from rlvr.study.source_files import CONFIG, as_input
from rlvr.study.studies import BEST, STEPS, score_points
from rlvr.study.study import Study

_FEWEST_STEPS = 10  # of a training that shows anything
REFERENCE = Path(as_input(CONFIG / "reference"))


@dataclass(frozen=True)
class Displayed:
    """The displayed results of each study: tables, figures, pages."""

    plan: Plan

    @cached_property
    def evidence(self) -> str:
        """A sentence on the evidence that the numbers give."""
        study = self.plan.study
        if study.methods and (steps := study.config.training["steps"]) < _FEWEST_STEPS:
            return f"This study tries the machinery: its trainings have {steps} steps, and its numbers mean nothing."
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
        if (
            any(benchmark.entry.source != "generated" for benchmark in study.benchmarks.values())
            or "columns" in study.training_settings
        ):
            return (
                "Real problems and a tiny model made from scratch on arithmetic: this shows that they pass"
                " through the machinery. It is no evidence about any model's ability."
            )
        return (
            "Generated problems and a tiny model made from scratch: this shows how the methods behave on this task, and"
            " that the machinery works. It is no evidence about models of billions of parameters."
        )

    def notes(self, folder: str) -> tuple[str, ...]:
        """The question of a study, if it says one, and what its numbers are evidence of."""
        question = self.plan.in_folder(folder).config.question
        return (self.evidence,) if question is None else (question, self.evidence)

    def stages(self, folder: str) -> Iterator[Stage]:
        """The stages that people look at of a study."""
        study = self.plan.in_folder(folder)
        if folder == self.plan.studies.folders.get(RATES) or study.config.doses or study.config.factorial:
            yield from self._of_designs(folder, study)
            return
        drawn = [*self.tables(folder), *self.figures(folder)]
        yield from drawn
        yield from self._pages(folder)
        if self.plan.study.methods:
            yield from self._summaries(folder, drawn)

    def _of_designs(self, folder: str, study: Study) -> Iterator[Stage]:
        """The table and the figure of a study at several rates, under doses, or of a factorial, in place of others."""

        def titles(methods: Iterable[str]) -> dict[str, str]:
            return {method: study.methods[method]["title"] for method in methods}

        shared: dict[str, Any] = {"folder": folder, "scores": self.plan.scores(folder)}
        shared |= {"statistics": self.plan.study.config.statistics}
        reference, directory = study.config.reference_method, Path(f"results/{folder}tables")
        trained: dict[str, Any] = {"manifests": self.plan.run_manifests(folder), "reference_method": reference}
        if folder == self.plan.studies.folders.get(RATES):
            rates = rates_of(study)
            yield tables.RatesTable(**shared, **trained, rates=rates, titles=titles(next(iter(rates.values()))))
        elif study.config.doses is not None:
            doses, plain = doses_of(study.config), titles(undosed(study.config))
            yield tables.DosesTable(**shared, **trained, doses=doses, titles=plain)
            yield figures.DosesFigure(folder=folder, table=directory / "doses.csv", reference_method=reference)
        elif study.config.factorial is not None:
            cells, controls = tuple(cells_of(study.config).values()), titles(study.config.control_methods)
            yield tables.FactorialTable(**shared, factorial=study.config.factorial, cells=cells, controls=controls)
            yield figures.FactorialFigure(folder=folder, table=directory / "factorial.csv")

    def tables(self, folder: str) -> Iterator[Stage]:
        """Its tables; a study of models alone has no methods to set side by side."""
        results, trainings = self.results(folder), self.trainings(folder)
        metrics = trainings["metrics"]
        yield tables.MainTable(**results, metrics=metrics, notes=self.notes(folder))
        if self.plan.study.methods:
            yield tables.BySeedTable(**results)
            yield tables.RobustTable(**trainings)
            yield tables.EfficiencyTable(**trainings)
            if bases := self.sizes(folder):
                yield tables.SizesTable(**results, bases=bases)
        yield tables.AuditTable(folder=folder, audits=self.plan.audits(folder), runs=results["runs"])
        if not self.plan.study.methods:
            return
        best = self.results(f"{folder}{BEST}")
        published = (REFERENCE / "published.csv", REFERENCE / "settings.yaml")
        compared = {**best, "folder": folder} if self.choices(folder) else results  # papers that choose report those
        yield tables.PublishedTable(**compared, published=published, reference=REFERENCE, own=self.own_settings())
        if self.choices(folder):
            of_best = {f"best_{key}": value for key, value in best.items() if key != "folder"}
            yield tables.CheckpointsTable(**results, **of_best, choices=self.choices(folder))

    def figures(self, folder: str) -> Iterator[Stage]:
        """Its figures; a study of models alone has no training curves."""
        results, trainings, study = self.results(folder), self.trainings(folder), self.plan.in_folder(folder)
        yield figures.ScoresFigure(**results)
        if not self.plan.study.methods:
            return
        yield figures.DifferencesFigure(**results)
        yield figures.ProfilesFigure(**results)
        if self.sizes(folder):
            title = study.methods[study.config.reference_method]["title"]
            yield figures.SizesFigure(folder=folder, table=Path(f"results/{folder}tables/sizes.csv"), reference=title)
        yield figures.CostCurves(**trainings)
        if study.validation_settings:
            yield figures.ComputePerformance(**trainings)
        yield figures.TrainingCurves(folder=folder, metrics=trainings["metrics"], runs=results["runs"])
        if choices := self.choices(folder):
            yield figures.ValidationCurves(folder=folder, choices=choices, runs=results["runs"])
        if folder:
            together = self.plan.studies.together(folder)
            configs = [self.plan.in_folder(other).config for other in together]
            yield figures.RewardCurves(
                folder=folder,
                metrics=tuple(path for other in together for path in self.plan.metrics(other)),
                runs=tuple(Path(f"results/{other}runs.json") for other in together),
                titles=tuple(config.title or config.study for config in configs),
                reference_method=study.config.reference_method,
            )
        steps = f"{folder}{STEPS}"
        if steps in self.plan.folders:
            points = score_points(study)
            yield figures.ScoreCurves(
                folder=folder,
                scores=(*self.plan.scores(folder), *self.plan.scores(steps)),
                runs=(Path(f"results/{folder}runs.json"), Path(f"results/{steps}runs.json")),
                points={method: [list(point) for point in along] for method, along in points.items()},
            )

    def _pages(self, folder: str) -> Iterator[Stage]:
        benchmarks, runs = tuple(self.plan.study.benchmarks), [run.run for run in self.plan.evaluated_runs(folder)]
        sheet = Path(f"results/{folder}runs.json")
        for benchmark in benchmarks:
            tables_of_tokens = (Path(f"results/diagnostics/{run}/{benchmark}/tokens.parquet") for run in runs)
            yield pages.ResponsesPage(
                folder=folder,
                benchmark=benchmark,
                runs=sheet,
                audits=self.plan.audits(folder, [benchmark]),
                grades=tuple(self.plan.grades(run, benchmark) for run in runs),
                samples=tuple(self.plan.samples(run, benchmark) for run in runs),
                tokens=tuple(path for path in tables_of_tokens if path.is_file()),
                benchmarks=benchmarks,
                report="../../report.html" if self.plan.study.methods else "",
                rollouts="../../rollouts/index.html" if self.keeps_rollouts else "",
            )
        if self.keeps_rollouts:
            yield pages.RolloutsPage(
                folder=folder,
                runs=sheet,
                manifests=self.plan.run_manifests(folder),
                problems=Path("results/problems/train/manifest.json"),
                benchmarks=benchmarks,
                replays=self.replays(folder),
            )

    def _summaries(self, folder: str, drawn: list[Stage]) -> Iterator[Stage]:
        """The report, and MLflow."""
        results, manifests = self.results(folder), self.plan.run_manifests(folder)
        shown: dict[str, Any] = {
            key: tuple(Path(stage.paths()[0]) for stage in drawn if stage.kind.startswith(f"{key[:-1]}_"))
            for key in ("tables", "figures")
        }
        config = self.plan.in_folder(folder).config
        names = [stage.kind.removeprefix("figure_") for stage in drawn if isinstance(stage, _OWN_FIGURES)]
        yield pages.Report(
            **results,
            **shown,
            title=config.title,
            own_figures=tuple(names),
            registrations=Path(f"results/{folder}{REGISTRATIONS}") if config.registration else None,
            manifests=manifests,
            study=Path(f"results/{folder}study.json"),
            audits=self.plan.audits(folder),
            notes=self.notes(folder),
            rollouts="rollouts/index.html" if self.keeps_rollouts else "",
        )
        yield pages.Track(
            **results,
            **shown,
            manifests=manifests,
            choices=self.choices(folder),
        )

    def sizes(self, folder: str) -> tuple[Path, ...]:
        """The base models of a study of several that are all made from scratch; none of any other."""
        config = self.plan.in_folder(folder).config
        scratch = self.plan.study.models_from_scratch
        several = len(config.models) > 1 and config.models.keys() == scratch.keys()
        return tuple(Path(f"results/base/{model}/manifest.json") for model in scratch) if several else ()

    def choices(self, folder: str) -> tuple[Path, ...]:
        """The choices of the best policies of a study's trainings; none where the last alone is reported."""
        return self.plan.choices(f"{folder}{BEST}")

    def results(self, folder: str) -> dict[str, Any]:
        """The fields of a stage made from a study's results."""
        return results_of(folder, self.plan.scores(folder))

    def trainings(self, folder: str) -> dict[str, Any]:
        """The fields of a stage made from the trainings, too."""
        files = {"metrics": self.plan.metrics(folder), "manifests": self.plan.run_manifests(folder)}
        return {**self.results(folder), **files}

    @property
    def keeps_rollouts(self) -> bool:
        """Whether the trainings of the studies keep rollouts, and a page shows them."""
        return bool(self.plan.study.methods) and self.plan.execution.rollouts_kept_every is not None

    def replays(self, folder: str) -> dict[str, str]:
        """Directory and hash of the manifest of every replayed training, where somebody made them.

        The page of rollouts has them as parameters: as inputs they would make a training that is done again be replayed
        again, too, for a page that shows whatever is there.
        """
        directories = [f"results/diagnostics/{run}" for run in self.plan.trained_runs(folder)]
        manifests = {directory: Path(directory, "manifest.json") for directory in directories}
        return {directory: sha256_file(path) for directory, path in manifests.items() if path.is_file()}

    def own_settings(self) -> dict[str, Any]:
        """The settings behind this study's numbers, in the terms of config/reference/settings.yaml."""
        study = self.plan.study
        sampling = {key: getattr(study.config.evaluation, key) for key in ("temperature", "top_p", "max_new_tokens")}
        models = {name: study.published_name(name) for name in study.config.models}
        prompt = "another than in training" if study.benchmarks_with_another_prompt else "that of training"
        decays = any(training.falling_steps for training in study.training.values())
        best = study.config.best_checkpoint
        checkpoint = f"best {best.benchmark} avg@{best.k}" if best else "last"
        checkpoint += ", after a decay of the learning rate" if decays else ""
        return {
            "models": models,
            "methods": study.published_methods,
            "training_problems": study.training_problems,
            "checkpoint": checkpoint,
            "evaluation_prompt": prompt,
            **sampling,
        }


_OWN_FIGURES = (figures.RewardCurves, figures.ScoreCurves, figures.SizesFigure)
"""Figures that not every study has; the report shows them in a section of their own."""
