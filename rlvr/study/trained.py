"""The parameters of the rules that make models and train runs: settings, options, devices, policies that are kept."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import canonical_json
from evals.core.run_spec import VERL
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import INTEGER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.benchmarks import absolute_path
from rlvr.study.plan import PRETRAINED, Plan
from rlvr.study.rules import manifests, words
from rlvr.study.software import named_python
from rlvr.study.studies import Candidate


@dataclass(frozen=True)
class TrainingJobs:
    """The jobs that make base models, train runs, and choose the best policies of trainings."""

    plan: Plan

    def corpus_settings(self, model: str) -> str:
        return canonical_json(self.plan.study.models_from_scratch[model].corpus.to_json())

    def corpus_count(self, model: str) -> int:
        """Number of worked solutions that a model's training uses up."""
        return self.plan.study.models_from_scratch[model].training.examples

    def base_model_settings(self, model: str) -> str:
        return canonical_json(self.plan.study.models_from_scratch[model].training_settings())

    def model_source(self, model: str) -> list[str]:
        entry = self.plan.imported[model]
        if entry.path is not None:
            return words({"model": absolute_path(entry.path)})
        return words({"model": entry.id, "revision": entry.hub_revision})

    def service(self, model: str) -> str:
        """Where a served model is, and what it is called there."""
        return canonical_json(self.plan.study.served_models[model].service())

    def model_files(self, model: str, only_planning: bool) -> list[str]:
        """The files of a local checkpoint: with one of them changed, it is imported and sampled again.

        A plan (``snakemake -n``) of a study by verl only says that a model is missing: it may be made far from where
        the models are. Otherwise that is a :class:`UserError`.
        """
        entry = self.plan.imported[model]
        if entry.path is None:
            return []
        directory = Path(absolute_path(entry.path))
        if directory.is_file():  # a GGUF file
            return [str(directory)]
        if not directory.is_dir():
            missing = f"models.{model.removesuffix(PRETRAINED)}.path: {entry.path}: no such directory or GGUF file"
            if not (self.plan.study.engine == VERL and only_planning):
                raise UserError(missing)
            print(f"not here yet: {missing}", file=sys.stderr)
        return sorted(str(path) for kind in ("*.safetensors", "*.json", "*.jinja") for path in directory.glob(kind))

    def fine_tuning(self, model: str) -> str:
        """The values that decide a fine-tuned model, given the bytes of the model before and of the solutions."""
        entry = self.plan.study.fine_tuned_models[model]
        own = {"dtype": entry.sampling_dtype, "prompt_form": entry.prompt_form}
        return canonical_json({**entry.fine_tuning.to_json(), **own})

    def run_spec(self, run: str) -> str:
        """The content of ``run.json``: whatever changes it makes this run, and no other, be trained again."""
        return canonical_json(self.plan.study_of(run).resolved_run(run))

    @property
    def training_versions(self) -> list[Any]:
        """Versions of everything that computes a training."""
        if self.plan.study.engine == VERL:
            return [VERL_ENGINE_VERSION, GRADER_VERSION]
        return [LOCAL_ENGINE_VERSION, SAMPLER_VERSION, INTEGER_VERSION]

    @property
    def training_python(self) -> str:
        """The command of the Python that trains in the job's own process; verl has one of its own."""
        return "python" if self.plan.study.engine == VERL else named_python(self.plan, "training_python")

    @property
    def training_options(self) -> str:
        """Options of the command that trains; none of them changes a result. Braces are filled in by Snakemake."""
        execution = self.plan.execution
        if self.plan.study.engine == VERL:
            return f"--cluster-json {{resources.cluster_json:q}} --python {execution['training_python']}"
        options = {"checkpoint_interval": execution.get("checkpoint_interval", 1), "device": execution["device"]}
        options["threads"] = self.plan.training_threads
        if "rollouts_kept_every" in execution:
            options["rollouts_kept_every"] = execution["rollouts_kept_every"]
        flags = ["--gradient-checkpointing"] if execution.get("gradient_checkpointing") else []
        return shlex.join([*words({**options, "grading_workers": execution["grading_workers"]}), *flags])

    def cluster(self, run: str) -> str:
        """The content of ``cluster.json``: where verl carries a run out; empty for the local engine."""
        return canonical_json(self.plan.study_of(run).cluster(run)) if self.plan.study.engine == VERL else ""

    @property
    def local_gpus(self) -> int:
        """GPUs of a job that trains in its own process."""
        return int(self.plan.execution["device"] == "cuda")

    def training_nodes(self, run: str) -> int:
        """The nodes of the job: those of the run, which starts Ray on them, but for a Ray cluster that runs already."""
        return 1 if self.plan.study.engine != VERL or self.ray_clusters(run) else self._nodes(run)

    def training_gpus(self, run: str) -> int:
        """GPUs that the job itself needs, on its one node."""
        if self.plan.study.engine != VERL:
            return self.local_gpus
        return self._gpus_per_node(run) if self._nodes(run) == 1 else 0

    def training_gres(self, run: str) -> str:
        """GPUs on each of the job's nodes if it has several, as Slurm writes them: so many in all would not do."""
        return f"gpu:{gpus}" if self.training_nodes(run) > 1 and (gpus := self._gpus_per_node(run)) else ""

    def ray_clusters(self, run: str) -> int:
        """1 for a run on several nodes by the Ray cluster of RAY_ADDRESS, which has room for one run at a time."""
        return int(self.plan.study.engine == VERL and self._nodes(run) > 1 and "RAY_ADDRESS" in os.environ)

    def _gpus_per_node(self, run: str) -> int:
        cluster = self.plan.study_of(run).cluster(run)
        return int(cluster["gpus_per_node"]) if cluster["platform"] == "cuda" else 0

    def _nodes(self, run: str) -> int:
        return int(self.plan.study_of(run).cluster(run)["nodes"])

    def training_priority(self, run: str) -> float:
        """Every method's first seed comes before any method's second, so that methods can be compared early."""
        study, trained = self.plan.studies.runs[run]
        seeds = study.config.seeds
        return 50 - seeds.index(trained.seed) / len(seeds)

    def kept_steps(self, run: str) -> str:
        """The steps whose policies a training keeps from the start.

        The best one is chosen among them, or a named study is scored at them. A run of the main study keeps none of the
        latter: few ask for them, and they are made again from its saved states.
        """
        along = [each for each in self.plan.earlier.values() if each.trained.run == run and not each.is_last]
        if self.plan.study_of(run) is self.plan.study:
            along = [each for each in along if isinstance(each, Candidate)]
        return " ".join(map(str, sorted({each.step for each in along})))

    def candidate_steps(self, run: str) -> str:
        """The steps before the last whose policies the best one of a run is chosen among."""
        policies = (each for best in self.plan.best.values() if best.trained.run == run for each in best.candidates)
        return " ".join(str(each.step) for each in policies if not each.is_last)

    def candidate_grades(self, run: str) -> list[str]:
        """The manifests of the grades by which a best policy is chosen."""
        return manifests(self._candidates(run).values())

    def candidates(self, run: str) -> str:
        """Steps of the policies that a best one is chosen among, with the directories of their grades."""
        return canonical_json(self._candidates(run))

    def _candidates(self, run: str) -> dict[str, str]:
        best = self.plan.study.config.best_checkpoint
        assert best is not None
        return {
            str(each.step): f"results/grades/{each.run.run}/{best.benchmark}" for each in self.plan.best[run].candidates
        }

    def trained_run(self, run: str) -> str:
        """The directory of the run that a best policy is of."""
        return f"results/runs/{self.plan.best[run].trained.run}"
