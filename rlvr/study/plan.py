"""The jobs of a study as the workflow's rules need them: paths, parameters and options for each run and benchmark.

A study's own results lie in a folder under results/: the main study's directly there (folder ``""``), a named one's in
``studies/NAME/``. Problems, models, runs, samples and grades are shared by all of them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.config.base_models import Existing
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json
from evals.core.records import Run
from evals.core.run_spec import VERIFIER_FILE, VERL
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import INTEGER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.verifier import read_verifier
from evals.grading.verdict import CODE, VERIFIER, Kind
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.benchmarks import absolute_path
from rlvr.study.rules import files_of, manifests, words
from rlvr.study.source_files import REPOSITORY
from rlvr.study.studies import BEST, BestPolicy, Candidate, EarlierPolicy, Studies, resolve_studies
from rlvr.study.study import TRAIN, VALIDATION, Study

PRETRAINED = "-pretrained"
"""The suffix of the name of a model before it is fine-tuned."""
OF_PROBLEMS = "problems"
"""The value of a fine-tuned model's ``solutions`` that stands for those of the training problems."""
TRAINING_PROBLEMS = "results/problems/train/problems.jsonl"


class Plan:
    """The jobs of the studies of one invocation.

    Attributes:
        study: the main study.
        folders: the folders of the studies' own results.
        earlier: run id -> the policy along a training that is evaluated under it.
        best: run id -> the best policy of a training, which is evaluated under it.
        trained: ids of the runs that are trained, of all studies.
        runs: ids of everything that is evaluated: base models, runs, and policies along their training.
        execution: how jobs are carried out; it changes no result.
        training_threads, base_threads: the study's and not the machine's, for they decide how sums are rounded.
        generated, read_benchmarks: benchmarks that are drawn, and that are read from the Hub or from files.
        trained_with: names of the problems that every training needs.
        trained_on: files of everything that models are trained on.
        imported: models that are fetched or linked; what is fine-tuned first has the name of its result and a suffix.
    """

    def __init__(self, studies: Studies) -> None:
        self.studies = studies
        self.study = study = studies.by_folder[""]
        self.folders = [*studies.by_folder, *studies.earlier, *studies.best]
        self.earlier = {each.run.run: each for policies in studies.earlier.values() for each in policies}
        self.best = {each.run.run: each for policies in studies.best.values() for each in policies}
        self.earlier |= {each.run.run: each for best in self.best.values() for each in best.candidates}
        self.trained = [identifier for identifier, (_, run) in studies.runs.items() if run.seed is not None]
        self.runs = [*studies.runs, *self.earlier, *self.best]
        self.execution = study.config.execution.to_json()
        self.training_threads = study.config.execution.training_threads or 1
        self.base_threads = study.config.execution.base_threads or 1
        self.generated = [name for name, each in study.benchmarks.items() if each.entry.source == "generated"]
        self.read_benchmarks = [name for name in study.benchmarks if name not in self.generated]
        self.trained_with = [TRAIN] * bool(study.trained_runs) + [VALIDATION] * bool(study.validation_settings)
        self.trained_on = [TRAINING_PROBLEMS] if study.methods else []
        self.trained_on += [f"results/base/{model}/corpus.jsonl" for model in study.models_from_scratch]
        self.trained_on += [
            file for file in map(self.solutions, study.fine_tuned_models) if file not in self.trained_on
        ]
        pretrained = {f"{model}{PRETRAINED}": entry for model, entry in study.fine_tuned_models.items()}
        self.imported: dict[str, Existing] = {**study.existing_models, **pretrained}

    @classmethod
    def read(cls, content: Mapping[str, Any], source: str) -> Plan:
        """Resolve a configuration, and check what it needs of this machine: better said now than after the training."""
        plan = cls(resolve_studies(content, source))
        copies = {name: benchmark.path for name, benchmark in plan.study.benchmarks.items()}
        for name, path in {**copies, "problems": plan.study.training_settings.get("path")}.items():
            if path is not None and not Path(path).exists():
                raise UserError(f"{name}: path: {path}: no such file or directory")
        for name, model in plan.study.fine_tuned_models.items():
            if model.solutions == OF_PROBLEMS:
                if not isinstance(plan.study.training_settings.get("columns"), str):
                    accepted = "a file, or problems of a released set with solutions (docs/benchmarks.md)"
                    raise InvalidInput(
                        f"models.{name}.solutions", "", f"is {OF_PROBLEMS}, which have no solutions", accepted
                    )
            elif not Path(plan.solutions(name)).is_file():
                raise UserError(f"models.{name}.solutions: {model.solutions}: no such file")
        for name, benchmark in plan.study.benchmarks.items():
            if benchmark.grader == CODE or name in plan.study.verifiers:
                try:
                    require_sandbox()
                except UserError as error:
                    raise UserError(f"benchmark {name}: {error}") from None
        for path in plan.study.verifiers.values():
            read_verifier(Path(path))
            require_sandbox()
        return plan

    def in_folder(self, folder: str) -> Study:
        """The study whose results lie there."""
        return self.studies.by_folder[folder.removesuffix(BEST) if folder in self.studies.best else folder]

    def evaluated_runs(self, folder: str) -> list[Run]:
        """The runs whose scores lie in a folder: of a study, or of its base models and other policies of its runs."""
        others: Sequence[EarlierPolicy | BestPolicy] = [
            *self.studies.earlier.get(folder, ()),
            *self.studies.best.get(folder, ()),
        ]
        if others:
            return [run for run in self.study.runs if run.seed is None] + [each.run for each in others]
        return self.in_folder(folder).runs

    def _model_of(self, run: str) -> str:
        policy = self.earlier.get(run) or self.best.get(run)
        return (policy.run if policy else self.studies.runs[run][1]).model

    def _study_of(self, run: str) -> Study:
        return self.studies.runs[run][0]

    # Problems

    def _problem_settings(self, benchmark: str) -> dict[str, Any]:
        own = {TRAIN: self.study.training_settings, VALIDATION: self.study.validation_settings}
        return own[benchmark] if benchmark in own else self.study.problem_settings(benchmark)

    def problem_settings(self, benchmark: str) -> str:
        """The values that decide the problems of a benchmark, or of the training."""
        return canonical_json(self._problem_settings(benchmark))

    def problem_kinds(self, benchmark: str) -> str:
        """Families and lengths of generated problems."""
        return canonical_json(self._problem_settings(benchmark)["kinds"])

    def problem_count(self, benchmark: str) -> int:
        return int(self._problem_settings(benchmark)["count"])

    def problem_seed(self, benchmark: str) -> int:
        return int(self._problem_settings(benchmark)["seed"])

    def problem_files(self, benchmark: str) -> list[str]:
        return files_of(self._problem_settings(benchmark).get("path"))

    def verifier_file(self, graded: str) -> str:
        """The user's file that grades a benchmark, or the training problems."""
        return self.study.verifiers[graded]

    def verifier(self, benchmark: str) -> list[str]:
        """The study's copy of it, if there is one."""
        return [f"results/verifiers/{benchmark}/{VERIFIER_FILE}"] if benchmark in self.study.verifiers else []

    # Models and training

    def corpus_settings(self, model: str) -> str:
        return canonical_json(self.study.models_from_scratch[model].corpus.to_json())

    def corpus_count(self, model: str) -> int:
        """Number of worked solutions that a model's training uses up."""
        return self.study.models_from_scratch[model].training.examples

    def base_model_settings(self, model: str) -> str:
        return canonical_json(self.study.models_from_scratch[model].training_settings())

    def model_source(self, model: str) -> list[str]:
        entry = self.imported[model]
        if entry.path is not None:
            return words({"model": absolute_path(entry.path)})
        return words({"model": entry.id, "revision": entry.hub_revision})

    def service(self, model: str) -> str:
        """Where a served model is, and what it is called there."""
        return canonical_json(self.study.served_models[model].service())

    def model_files(self, model: str, only_planning: bool) -> list[str]:
        """The files of a local checkpoint: with one of them changed, it is imported and sampled again.

        A plan (``snakemake -n``) of a study by verl only says that a model is missing: it may be made far from where
        the models are. Otherwise that is a :class:`UserError`.
        """
        entry = self.imported[model]
        if entry.path is None:
            return []
        directory = Path(absolute_path(entry.path))
        if directory.is_file():  # a GGUF file
            return [str(directory)]
        if not directory.is_dir():
            missing = f"models.{model.removesuffix(PRETRAINED)}.path: {entry.path}: no such directory or GGUF file"
            if not (self.study.engine == VERL and only_planning):
                raise UserError(missing)
            print(f"not here yet: {missing}", file=sys.stderr)
        return sorted(str(path) for kind in ("*.safetensors", "*.json", "*.jinja") for path in directory.glob(kind))

    def solutions(self, model: str) -> str:
        """The solutions that a model is fine-tuned on."""
        given_solutions = self.study.fine_tuned_models[model].solutions
        return TRAINING_PROBLEMS if given_solutions == OF_PROBLEMS else absolute_path(given_solutions)

    def fine_tuning(self, model: str) -> str:
        """The values that decide a fine-tuned model, given the bytes of the model before and of the solutions."""
        entry = self.study.fine_tuned_models[model]
        own = {"dtype": entry.sampling_dtype, "prompt_form": entry.prompt_form}
        return canonical_json({**entry.fine_tuning.to_json(), **own})

    def run_spec(self, run: str) -> str:
        """The content of ``run.json``: whatever changes it makes this run, and no other, be trained again."""
        return canonical_json(self._study_of(run).resolved_run(run))

    def base_manifest(self, run: str) -> str:
        """The manifest of the base model that a run starts from."""
        return f"results/base/{self._model_of(run)}/manifest.json"

    @property
    def training_versions(self) -> list[Any]:
        """Versions of everything that computes a training."""
        if self.study.engine == VERL:
            return [VERL_ENGINE_VERSION, GRADER_VERSION]
        return [LOCAL_ENGINE_VERSION, SAMPLER_VERSION, INTEGER_VERSION]

    @property
    def training_options(self) -> str:
        """Options of the command that trains; none of them changes a result. Braces are filled in by Snakemake."""
        execution = self.execution
        if self.study.engine == VERL:
            return f"--cluster-json {{resources.cluster_json:q}} --python {execution['training_python']}"
        options = {"checkpoint_interval": execution.get("checkpoint_interval", 1), "device": execution["device"]}
        options |= {"threads": self.training_threads, "hidden_state_budget": execution.get("hidden_state_budget", 0)}
        if "rollouts_kept_every" in execution:
            options["rollouts_kept_every"] = execution["rollouts_kept_every"]
        flags = ["--gradient-checkpointing"] if execution.get("gradient_checkpointing") else []
        return shlex.join([*words({**options, "grading_workers": execution["grading_workers"]}), *flags])

    def cluster(self, run: str) -> str:
        """The content of ``cluster.json``: where verl carries a run out; empty for the local engine."""
        return canonical_json(self._study_of(run).cluster(run)) if self.study.engine == VERL else ""

    @property
    def local_gpus(self) -> int:
        """GPUs of a job that trains in its own process."""
        return int(self.execution["device"] == "cuda")

    def training_gpus(self, run: str) -> int:
        """GPUs that the job itself needs: none on several machines, whose Ray cluster has them and runs already."""
        if self.study.engine != VERL:
            return self.local_gpus
        cluster = self._study_of(run).cluster(run)
        return int(cluster["gpus_per_node"]) if cluster["platform"] == "cuda" and cluster["nodes"] == 1 else 0

    def ray_clusters(self, run: str) -> int:
        """1 on several machines: their Ray cluster has room for one run at a time."""
        return int(self.study.engine == VERL and self._study_of(run).cluster(run)["nodes"] > 1)

    def trained_runs(self, folder: str) -> list[str]:
        """Ids of the runs of a study, base models aside."""
        return [run.run for run in self.evaluated_runs(folder) if run.seed is not None]

    def run_manifests(self, folder: str) -> list[str]:
        """The manifests of every trained run of a study.

        Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job
        through its manifest.
        """
        return manifests(f"results/runs/{run}" for run in self.trained_runs(folder))

    def metrics(self, folder: str) -> list[str]:
        return [f"results/runs/{run}/metrics.parquet" for run in self.trained_runs(folder)]

    def training_priority(self, run: str) -> float:
        """Every method's first seed comes before any method's second, so that methods can be compared early."""
        study, trained = self.studies.runs[run]
        seeds = study.config.seeds
        return 50 - seeds.index(trained.seed) / len(seeds)

    # Samples, grades, scores

    def checkpoint(self, run: str) -> str:
        """The directory of the checkpoint that a run evaluates."""
        if run in self.best:
            return f"results/runs/{run}"
        return self.earlier[run].directory if run in self.earlier else self._study_of(run).checkpoint(run)

    def checkpoint_manifest(self, run: str) -> str:
        """The file that stands for that checkpoint."""
        policy = self.earlier.get(run)
        if isinstance(policy, Candidate):
            return f"results/runs/{policy.trained.run}/candidates.kept"
        return f"{self.checkpoint(run)}{'.kept' if policy else '/manifest.json'}"

    def kept_steps(self, run: str) -> str:
        """The steps whose policies a training keeps from the start.

        The best one is chosen among them, or a named study is scored at them. A run of the main study keeps none of the
        latter: few ask for them, and they are made again from its saved states.
        """
        along = [each for each in self.earlier.values() if each.trained.run == run and not each.is_last]
        if self._study_of(run) is self.study:
            along = [each for each in along if isinstance(each, Candidate)]
        return " ".join(map(str, sorted({each.step for each in along})))

    def candidate_steps(self, run: str) -> str:
        """The steps before the last whose policies the best one of a run is chosen among."""
        policies = (each for best in self.best.values() if best.trained.run == run for each in best.candidates)
        return " ".join(str(each.step) for each in policies if not each.is_last)

    def candidate_grades(self, run: str) -> list[str]:
        """The manifests of the grades by which a best policy is chosen."""
        return manifests(self._candidates(run).values())

    def candidates(self, run: str) -> str:
        """Steps of the policies that a best one is chosen among, with the directories of their grades."""
        return canonical_json(self._candidates(run))

    def _candidates(self, run: str) -> dict[str, str]:
        best = self.study.config.best_checkpoint
        assert best is not None
        return {str(each.step): f"results/grades/{each.run.run}/{best.benchmark}" for each in self.best[run].candidates}

    def choices(self, folder: str) -> list[str]:
        """The files that say which policies a folder's best ones are."""
        return [f"results/runs/{each.run.run}/chosen.json" for each in self.studies.best[folder]]

    def trained_run(self, run: str) -> str:
        """The directory of the run that a best policy is of."""
        return f"results/runs/{self.best[run].trained.run}"

    def prompt(self, run: str, benchmark: str) -> str:
        """A benchmark's prompt template, for the model of a run."""
        return self.study.prompt(benchmark, self._model_of(run))

    def evaluation(self, run: str, benchmark: str) -> dict[str, Any]:
        """The values that decide a run's samples beside model and problems: settings of sampling, and of the model."""
        model, evaluation = self.study.config.models[self._model_of(run)], self.study.config.evaluation
        settings = {"backend": "local", "tensor_parallel_size": 1, **evaluation.to_json(), **model.prompting}
        settings |= {"samples_per_problem": evaluation.samples(benchmark), "samples_of": None}
        settings |= {"dtype": model.sampling_dtype, "prompt_form": model.prompt_form}
        settings.pop("prompt", None)  # every benchmark's own, see prompt()
        if self._model_of(run) in self.study.served_models:
            settings["backend"] = "server"
        best = self.study.config.best_checkpoint
        if best is not None and isinstance(self.earlier.get(run), Candidate):
            # Samples of their own: else the noise of those that are scored would be selected on.
            settings |= {"samples_per_problem": best.k, "seed": evaluation.seed + 1}
        return {key: value for key, value in sorted(settings.items()) if value is not None}

    def sampling_options(self, run: str, benchmark: str) -> list[str]:
        renamed = {"sampling_batch_size": "batch_size"}
        settings = {renamed.get(key, key): value for key, value in self.evaluation(run, benchmark).items()}
        structured = {key: canonical_json(value) for key, value in settings.items() if isinstance(value, list | dict)}
        return words(settings | structured)

    @cached_property
    def sampling_command(self) -> str:
        """The beginning of the command that samples, in the environment of the backend."""
        python = self.execution.get("sampling_python", "python")
        if "/" in python:  # relative to the repository; a bare name is on the PATH
            path = REPOSITORY / Path(python).expanduser()
            if not path.is_file():
                advice = "`make test-engines` makes .venv-engines"
                raise UserError(f"execution.sampling_python: {python}: no such file; {advice}")
            python = shlex.quote(str(path))
        options = {"threads": self.execution["sampling_threads"], "device": self.execution["device"]}
        options |= {"gpu_memory_utilization": self.execution.get("gpu_memory_utilization", 0.9)}
        return f"{python} -m rlvr stage sample {shlex.join(words(options))}"

    def other_benchmarks(self, run: str, benchmark: str) -> str:
        """What a job goes on with once it has loaded the model: the run's other benchmarks, and settings of theirs."""
        samples = self.study.config.evaluation.samples
        if isinstance(self.earlier.get(run), Candidate):
            return canonical_json({})
        return canonical_json(
            {
                f"results/problems/{name}": {"prompt": self.prompt(run, name), "samples_per_problem": samples(name)}
                for name in self.study.benchmarks
                if name != benchmark
            }
        )

    def sampling_priority(self, benchmark: str) -> float:
        """All runs' first benchmarks come first: those jobs sample the others too, which are then only written."""
        names = list(self.study.benchmarks)
        return 20 - names.index(benchmark) / len(names)

    @property
    def sampling_gpus(self) -> int:
        return (self.study.config.evaluation.tensor_parallel_size or 1) if self.execution["device"] == "cuda" else 0

    def sample_parts(self, run: str, benchmark: str) -> list[str]:
        """Marks of the jobs that a benchmark is divided into; none if one job does it all."""
        splits = self.execution.get("sampling_splits", 1)
        directory = f"results/samples/{run}/{benchmark}/splits"
        return [f"{directory}/{part}-of-{splits}" for part in range(1, splits + 1)] if splits > 1 else []

    def grading_kind(self, benchmark: str) -> str:
        """The form in which a benchmark's responses are read."""
        if benchmark in self.study.verifiers:
            return VERIFIER
        grader = self.study.benchmarks[benchmark].grader
        return grader if grader in (Kind.CHOICE, CODE) else Kind.COMPLETION.value

    def grader_version(self, benchmark: str) -> Any:
        """The version of what grades a benchmark."""
        versions = {CODE: f"{CODE} {CODE_GRADER_VERSION}", VERIFIER: f"{VERIFIER} {VERIFIER_VERSION}"}
        return versions.get(self.grading_kind(benchmark), GRADER_VERSION)

    def grades(self, folder: str, benchmark: str) -> list[str]:
        """The directories of the grades of every run of a study on a benchmark."""
        return [f"results/grades/{run.run}/{benchmark}" for run in self.evaluated_runs(folder)]

    def samples(self, folder: str, benchmark: str) -> list[str]:
        """The directories of their samples, in the same order."""
        return [f"results/samples/{run.run}/{benchmark}" for run in self.evaluated_runs(folder)]

    def grade_manifests(self, folder: str, benchmark: str) -> list[str]:
        """The manifests of the grades, which stand for them: they have their hash, which the command checks."""
        return manifests(self.grades(folder, benchmark))

    def sample_manifests(self, folder: str, benchmark: str) -> list[str]:
        return manifests(self.samples(folder, benchmark))

    def scores(self, folder: str) -> list[str]:
        return [f"results/{folder}scores/{benchmark}.json" for benchmark in self.study.benchmarks]

    def audits(self, folder: str) -> list[str]:
        return [f"results/{folder}audits/{benchmark}.json" for benchmark in self.study.benchmarks]

    @property
    def statistics(self) -> dict[str, Any]:
        return dict(sorted(self.study.config.statistics.to_json().items()))

    def reference_method(self, folder: str) -> str:
        return self.in_folder(folder).config.reference_method

    def comparison_options(self, folder: str) -> list[str]:
        """The options of comparisons that not every study has: its controls, and the weights of its benchmarks."""
        config, options = self.in_folder(folder).config, dict[str, str]()
        if config.controls:
            options["controls"] = canonical_json(config.controls.to_json())
        weighting = config.statistics.weighting
        if isinstance(weighting, dict):
            options["weighting"] = ",".join(f"{name}={weight}" for name, weight in weighting.items())
        elif weighting:
            options["weighting"] = weighting
        return words(options)

    def study_name(self, folder: str) -> str:
        return self.in_folder(folder).config.study

    def study_json(self, folder: str) -> str:
        return canonical_json(self.in_folder(folder).config.to_json())

    def run_sheet(self, folder: str) -> str:
        """All runs of a study."""
        return canonical_json([run.to_json() for run in self.evaluated_runs(folder)])

    def intermediate(self, folder: str) -> list[str]:
        """Manifests of everything between a study and what people look at.

        Targets ask for them by name. A job that fails loses its outputs, and Snakemake makes a lost file again only if
        it is asked for or something that is to be made needs it: not for a table that is there, made from that file.
        """
        study = self.in_folder(folder)
        problems = [*self.study.benchmarks, *self.trained_with]
        directories = [f"results/problems/{name}" for name in problems]
        directories += [f"results/verifiers/{name}" for name in self.study.verifiers]
        directories += [f"results/base/{model}{PRETRAINED}" for model in study.fine_tuned_models]
        directories += [study.checkpoint(run.run) for run in study.runs]
        chosen = self.studies.best.get(f"{folder}{BEST}", ())
        directories += [f"results/runs/{each.run.run}" for each in chosen]
        runs = [*study.runs, *(each.run for each in chosen)]
        for stage in ("samples", "grades"):
            directories += [f"results/{stage}/{run.run}/{name}" for run in runs for name in study.benchmarks]
            if best := study.config.best_checkpoint:
                candidates = [policy.run.run for each in chosen for policy in each.candidates]
                directories += [f"results/{stage}/{run}/{best.benchmark}" for run in candidates]
        return manifests(directories)
