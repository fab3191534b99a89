"""Stages that train runs, keep policies along them, and choose the best one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from evals.core.config.sections import StudyExecution
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json, read_json, write_text
from evals.core.run_spec import COMPONENT_FILE, VERL, Execution, LocalRun
from rlvr.stages.stage import ASIDE, File, FileByName, Files, Stage

REPOSITORY = Path(__file__).resolve().parents[2]


class CopyComponent(Stage):
    """A file of the user's with components, copied into the results, in a directory named after its bytes."""

    kind = "copy_component"
    target = "results/components/{digest}"
    endings = ("/manifest.json", f"/{COMPONENT_FILE}")
    call = "rlvr.methods.component_file:copy_component"

    order = 200  # before all trainings

    digest: str
    file: File


class Devices(Stage):
    """The devices of a job that trains.

    Attributes:
        run: the run's id.
        cluster: where verl carries it out, the content of cluster.json; empty for the local engine.
        has_ray: whether several nodes are those of a Ray cluster that runs already.
        training_priority: the order of the trainings.
    """

    environment = "training"
    threads_of = "training_threads"

    run_id: str
    cluster: Annotated[dict[str, Any], ASIDE] = {}
    has_ray: Annotated[bool, ASIDE] = False
    training_priority: Annotated[float, ASIDE] = 50

    @property
    def priority(self) -> float:
        """Every method's first seed comes before any method's second, so that methods can be compared early."""
        return self.training_priority

    def resources(self, machine: StudyExecution) -> dict[str, Any]:
        """The nodes and GPUs of the job: those of the run, which starts Ray on them, but for a Ray cluster that runs.

        On several nodes Slurm is told the GPUs of each, for so many in all would not do.
        """
        if not self.cluster:
            return {"gpu": int(machine.device == "cuda")}
        nodes = int(self.cluster["nodes"])
        gpus = int(self.cluster["gpus_per_node"]) if self.cluster["platform"] == "cuda" else 0
        own_nodes = 1 if self.has_ray else nodes
        return {
            "nodes": own_nodes,
            "gpu": gpus if nodes == 1 else 0,
            "gres": f"gpu:{gpus}" if own_nodes > 1 and gpus else "",
            "ray_cluster": int(nodes > 1 and self.has_ray),
        }

    def carry_out(self, machine: StudyExecution, kept_steps: Sequence[int]) -> None:
        """Train the run of this stage's directory up to its end, and keep the policies after ``kept_steps``."""
        directory = Path(f"results/runs/{self.run_id}")
        if self.cluster:
            write_text(directory / "cluster.json", canonical_json(self.cluster))
        python = machine.training_python or "python"
        train_run(directory / "run.json", machine, self.threads(machine), python, kept_steps)


class Train(Devices):
    """A training. Its outputs are small; state/ and checkpoint/ beside them are the trainer's own.

    Attributes:
        resolved: the content of run.json: whatever changes it makes this run, and no other, be trained again.
        engine_versions: of everything that computes it.
        kept_steps: the steps whose policies it keeps from the start.
    """

    kind = "train"
    target = "results/runs/{run_id}"
    endings = ("/manifest.json", "/run.json", "/metrics.parquet")
    cost = "results/costs/train/{run_id}.tsv"

    resolved: dict[str, Any]
    engine_versions: tuple[Any, ...]
    base: File
    problems: Files
    verifier: Files = ()
    components: Files = ()
    kept_steps: Annotated[tuple[int, ...], ASIDE] = ()

    def run(self, machine: StudyExecution) -> None:
        """Write run.json, and train."""
        write_text(Path(f"results/runs/{self.run_id}/run.json"), canonical_json(self.resolved))
        self.carry_out(machine, self.kept_steps)


class KeepPolicy(Devices):
    """A policy along a training, which a study is scored at.

    The trainer's own files lie in the directory beside the output, so that they are kept; one that is not there is made
    by repeating the training up to its step.
    """

    kind = "policy_at_step"
    outputs = ("results/runs/{run_id}/checkpoints/step-{step}.kept",)
    cost = "results/costs/policies/{run_id}/step-{step}.tsv"

    step: int
    trained: File

    def run(self, machine: StudyExecution) -> None:
        """Keep it, and mark that it is there."""
        self.carry_out(machine, [self.step])
        write_text(self.out, "")


class KeepCandidates(Devices):
    """The policies along a training that the best one is chosen among, all kept by one job."""

    kind = "candidates"
    outputs = ("results/runs/{run_id}/candidates.kept",)
    cost = "results/costs/policies/{run_id}/candidates.tsv"

    steps: tuple[int, ...]
    trained: File

    def run(self, machine: StudyExecution) -> None:
        """Keep them, and mark that they are there."""
        self.carry_out(machine, self.steps)
        write_text(self.out, "")


class ChooseBest(Stage):
    """The best policy of a training, laid out as a run; checkpoint/ has its files, by hard links."""

    kind = "best_policy"
    target = "results/runs/{run_id}"
    endings = ("/manifest.json", "/metrics.parquet", "/chosen.json", "/chosen.manifest.json")
    call = "rlvr.engines.best:choose_best"

    run_id: str
    trained: str
    candidates: FileByName

    def arguments(self) -> dict[str, Any]:
        """The run and the grades by their directories."""
        directories = {step: str(manifest.parent) for step, manifest in self.candidates.items()}
        return {"trained": Path(self.trained), "candidates": directories}


def train_run(
    run_file: Path,
    execution: Execution,
    threads: int | None,
    python: str = "python",
    kept_steps: Sequence[int] = (),
    out: Path | None = None,
    cluster_file: Path | None = None,
) -> None:
    """Train, or continue, the run of ``run_file`` by the engine that it names.

    Exits with status 143 after a SIGTERM, with the state saved. verl reads cluster.json beside ``run_file``, and its
    checkpoint is merged into Hugging Face's format.

    Args:
        threads: that torch keeps to; the local engine needs it.
        python: of verl's environment.
        kept_steps: steps after which the policy is kept too.
        out: directory of a run by the local engine; None for that of ``run_file``.
        cluster_file: where verl trains; None for cluster.json beside ``run_file``.
    """
    from rlvr.runs.termination import exit_if_interrupted

    content = read_json(run_file)
    with exit_if_interrupted():
        if isinstance(content, dict) and content.get("engine") == VERL:
            from rlvr.engines.verl import train as by_verl

            run, cluster, places = read_verl_run(run_file, cluster_file)
            settings = by_verl.Execution(
                cluster, find_program(python), places.study, REPOSITORY, execution.lock_wait_seconds
            )
            return by_verl.train(run, places.run, settings, kept_steps)
        if threads is None:
            raise UserError("--threads: is missing; accepted: a number, for engine local")
        from evals.generation import arithmetic

        arithmetic.set_up(threads, is_portable(content, execution.device))
        from rlvr.engines.local.train import train

        train(LocalRun.read(run_file), out or run_file.parent, execution, kept_steps)


def is_portable(run: Any, device: str) -> bool:
    """Whether a training takes the code paths that every processor has, by the content of its run.json.

    Half the precision takes the machine's own, and so does everything that repeats such a training.
    """
    return device == "cpu" and not (isinstance(run, dict) and run.get("dtype") in ("bfloat16", "float16"))


def read_verl_run(run_file: Path, cluster_file: Path | None = None) -> Any:
    """The run, the cluster and the places of a training by verl."""
    from evals.core.run_spec import Cluster, VerlRun
    from rlvr.engines.verl.launch import Places

    directory = run_file.resolve().parent
    if "micro_batch_size" in dict(read_json(run_file)).get("training", {}):
        accepted = f"one of verl; `rlvr-bench train {run_file}` trains it, and with --device-memory sums up its memory"
        raise InvalidInput(str(run_file), "", "is a run of the local engine", accepted)
    run = VerlRun.read(run_file)
    cluster = Cluster.read(cluster_file or directory / "cluster.json")
    state = directory / "state" / "verl"
    return run, cluster, Places(run=directory, study=Path.cwd(), repository=REPOSITORY, state=state)


def find_program(python: str) -> str:
    """The Python of verl's environment; a path is relative to the repository."""
    relative = "/" in python and not Path(python).is_absolute()
    program = shutil.which(REPOSITORY / python if relative else python)
    if program is None:
        raise UserError(f"training_python: {python}: no such program; accepted: Python with verl installed")
    return program
