"""Measure whether a task has headroom: the criteria of docs/results/task_design.md, held against a study.

    python benchmarks/task_design.py STUDY.yaml --out DIR --bases 3 --seeds 6

The study has one model, from scratch. The command makes base models of the pretraining seeds 1 to ``--bases``, and
trains the reference method and the study's controls with seeds 1 to ``--seeds``, from the base models in turn.
It looks at no other method. Problems, base models and runs in DIR are made once: the command goes on where it was
stopped, and more seeds add to what is there. Every policy answers the benchmarks at temperature 1 and at temperature 0.
DIR/task_design.json has the numbers, in percent and points, with intervals of 95 percent over problems and base models;
over problems and training seeds, where there is one base model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.config.base_models import FromScratch
from evals.core.files import read_json, read_jsonl, write_json
from evals.core.records import ProblemKind
from evals.core.run_spec import Execution, LocalRun
from evals.core.sampling import SamplingParameters
from evals.generation import arithmetic
from evals.problems.arithmetic import write_problems
from evals.statistics.accuracy import pass_at_k
from evals.statistics.difference import Arm, estimate_combination
from rlvr.base_model.corpus import write_corpus
from rlvr.study.study import TRAIN, VALIDATION, Study

DECODINGS = {"T 1": 1.0, "T 0": 0.0}
BASE_SAMPLES, SAMPLES, LARGE_K = 64, 8, 32
ROLES = ["reference", "half the steps", "negative control", "random rewards"]
AGAINST_BASE = ("reference", "random rewards")
"""The roles that are compared with the base model; the others are compared with the reference method."""
OF_BASE = {"T 0": (20.0, 65.0), f"pass@{LARGE_K}": (60.0, 97.0), "unsolved in 64": (5.0, 100.0)}
"""The criteria of every base model: the least and the largest percentage over the benchmarks."""
LEAST_GAIN = 10.0
"""The criterion of the reference method: points over its base model on the benchmarks that it is trained on."""

Counts = dict[str, np.ndarray]  # benchmark -> right samples of each problem


class Task:
    """The base models and runs of a study in a directory."""

    def __init__(self, study: Study, out: Path, bases: int) -> None:
        (name,) = study.config.models
        model, config = study.config.models[name], study.config
        assert isinstance(model, FromScratch) and config.problems is not None and config.controls is not None
        self.study, self.name, self.model, self.out, self.bases = study, name, model, out, bases
        entries = {benchmark: known.entry for benchmark, known in study.benchmarks.items()}
        self.kinds = {
            benchmark: ProblemKind(family=entry.family, operands=entry.operands) for benchmark, entry in entries.items()
        }
        controls = config.controls
        methods = (config.reference_method, controls.positive, controls.negative, controls.random_rewards)
        self.verifiers = {benchmark: Path(file) for benchmark, file in study.verifiers.items()}
        self.roles = dict(zip(ROLES, methods, strict=True))
        self.problems: dict[str, list[dict[str, Any]]] = {}
        for benchmark, entry in entries.items():
            directory = out / "problems" / benchmark
            if not (directory / "manifest.json").exists():
                kinds = [self.kinds[benchmark].to_json()]
                write_problems(benchmark, kinds, "evaluation", entry.count, entry.seed, directory)
            rows = read_jsonl(directory / "problems.jsonl", ("problem", "answer"))
            self.problems[benchmark] = [{**row, "prompt": entry.prompt} for row in rows]
        if not (out / "problems" / "train" / "manifest.json").exists():
            settings = config.problems.to_json()
            kinds, count, seed = (settings[key] for key in ("kinds", "count", "seed"))
            write_problems("train", kinds, "train", count, seed, out / "problems" / "train")
        trained = [ProblemKind.parse(kind, "kinds") for kind in config.problems.to_json()["kinds"]]
        self.trained = [benchmark for benchmark, kind in self.kinds.items() if kind in trained]

    def base(self, seed: int) -> Path:
        """The base model of a pretraining seed, of its corpus and of its first weights."""
        from rlvr.base_model.train import BaseModelSettings, train_base_model

        directory, corpus = self.out / "base" / f"{self.name}-{seed}", self.model.corpus
        if not (directory / "manifest.json").exists():
            settings = corpus.model_copy(update={"seed": corpus.seed + seed - 1})
            training = {**self.model.training_settings(), "seed": self.model.training.seed + seed - 1}
            write_corpus(settings, self.model.training.examples, directory / "corpus.jsonl")
            parsed = BaseModelSettings.parse(training, "training")
            held_out = self._held_out() if parsed.stop_at else None
            train_base_model(parsed, directory / "corpus.jsonl", directory, 1000, 600.0, held_out)
        return directory

    def _held_out(self) -> Path:
        """The study's held-out problems, by whose accuracy its base models stop."""
        directory, settings = self.out / "problems" / VALIDATION, self.study.validation_settings
        if not (directory / "manifest.json").exists():
            write_problems(VALIDATION, settings["kinds"], "evaluation", settings["count"], settings["seed"], directory)
        return directory / "problems.jsonl"

    def base_seed(self, seed: int) -> int:
        """The pretraining seed of the base model that a training seed starts from."""
        return (seed - 1) % self.bases + 1

    def run(self, method: str, seed: int) -> Path:
        """A run of a method by the local engine, without contrast and scores on the way."""
        from evals.grading.grade_file import try_verifier
        from rlvr.engines.local.train import train

        base = self.base_seed(seed)
        directory = self.out / "runs" / f"{self.name}-{base}-{method}-s{seed}"
        if not (directory / "manifest.json").exists():
            first = self.study.run_spec(f"{self.name}-{method}-s{self.study.config.training_seeds[0]}")
            assert isinstance(first, LocalRun)
            of_run = {"seed": seed, "run": directory.name, "model": f"{self.name}-{base}", "base": self.base(base)}
            changes = {**of_run, "problems": self.out / "problems" / "train", "contrast": None, "validation": None}
            if first.verifier is not None:
                copied = self.out / "verifiers"
                if not (copied / "manifest.json").exists():
                    problems = self.out / "problems" / "train" / "problems.jsonl"
                    try_verifier(self.verifiers[TRAIN], problems, copied)
                changes["verifier"] = first.verifier.model_copy(update={"directory": copied})
            directory.mkdir(parents=True, exist_ok=True)
            train(first.model_copy(update=changes), directory, Execution(device="cpu"))
        return directory

    def counts(self, directory: Path, decoding: str, samples: int) -> Counts:
        """The right samples of each problem of the benchmarks, drawn and graded once."""
        files = {name: directory / "counts" / f"{name}, {decoding}, {samples}.json" for name in self.problems}
        if missing := [name for name, file in files.items() if not file.exists()]:
            for name, counts in self._answer(directory, missing, DECODINGS[decoding], samples).items():
                write_json(files[name], counts)
        return {name: np.array(read_json(file)) for name, file in files.items()}

    def _answer(
        self, directory: Path, benchmarks: Sequence[str], temperature: float, samples: int
    ) -> dict[str, list[int]]:
        from evals.generation.checkpoint import Checkpoint
        from evals.generation.plan import encode_prompts
        from evals.generation.sampler import sample
        from evals.generation.thinking import case_of
        from evals.grading import GradingPool

        checkpoint = Checkpoint.of(directory)
        decoder, counts = checkpoint.decoder("cpu"), {}
        longest = self.study.config.evaluation.max_new_tokens
        parameters = SamplingParameters(max_new_tokens=longest, temperature=temperature, sampling_batch_size=512)
        for benchmark in benchmarks:
            with GradingPool(1, verifier=self.verifiers.get(benchmark)) as pool:
                rows = self.problems[benchmark]
                texts = [row["prompt"].format(problem=row["problem"]) for row in rows]
                prompts = encode_prompts(checkpoint, texts, "base")
                names = [[f"{benchmark}/{row}/{number}" for number in range(samples)] for row in range(len(rows))]
                cases = [
                    case_of(checkpoint.tokenizer, prompt, response.tokens, response.finished, row["answer"], row)
                    for row, prompt, responses in zip(
                        rows, prompts, sample(decoder, prompts, names, parameters, checkpoint.end_tokens), strict=True
                    )
                    for response in responses
                ]
                right = np.array([verdict.correct for verdict in pool.grade(cases)]).reshape(len(rows), samples)
                counts[benchmark] = right.sum(axis=1).tolist()
        return counts


def measure(task: Task, seeds: Sequence[int], roles: Sequence[str]) -> dict[str, Any]:
    """The numbers of the base models and of the roles' runs, and which criteria they meet."""
    bases = sorted({task.base_seed(seed) for seed in seeds})

    @cache
    def base(number: int, decoding: str) -> Counts:
        return task.counts(task.base(number), decoding, BASE_SAMPLES if decoding == "T 1" else 1)

    @cache
    def run(role: str, seed: int, decoding: str) -> Counts:
        return task.counts(task.run(task.roles[role], seed), decoding, SAMPLES if decoding == "T 1" else 1)

    def shares(counts: Counts, of_base: bool, decoding: str) -> Mapping[str, np.ndarray]:
        samples = 1 if decoding == "T 0" else BASE_SAMPLES if of_base else SAMPLES
        return {benchmark: right / samples for benchmark, right in counts.items()}

    result: dict[str, Any] = {"bases": len(bases), "seeds": len(seeds), "trained": task.trained, "base": {}}
    for number in bases:
        sampled, greedy = base(number, "T 1"), base(number, "T 0")
        result["base"][number] = {
            "T 0": {benchmark: _percent(right) for benchmark, right in greedy.items()},
            "T 1": {benchmark: _percent(right / BASE_SAMPLES) for benchmark, right in sampled.items()},
            f"pass@{LARGE_K}": {
                benchmark: _percent(pass_at_k(right, BASE_SAMPLES, LARGE_K)) for benchmark, right in sampled.items()
            },
            "unsolved in 64": {benchmark: _percent(right == 0) for benchmark, right in sampled.items()},
        }
    means = {
        name: [float(np.mean(list(of[name].values()))) for of in result["base"].values()] for name in ("T 1", *OF_BASE)
    }
    result["base means"] = means
    result["runs"] = {
        role: {
            decoding: {
                benchmark: [_percent(shares(run(role, seed, decoding), False, decoding)[benchmark]) for seed in seeds]
                for benchmark in task.problems
            }
            for decoding in DECODINGS
        }
        for role in roles
    }
    differences: dict[str, Any] = {}
    for role in roles:
        for decoding in DECODINGS:

            def against(seed: int, benchmark: str, role: str = role, decoding: str = decoding) -> np.ndarray:
                ours = shares(run(role, seed, decoding), False, decoding)[benchmark]
                if role in AGAINST_BASE:
                    return ours - shares(base(task.base_seed(seed), decoding), True, decoding)[benchmark]
                return ours - shares(run("reference", seed, decoding), False, decoding)[benchmark]

            for place, benchmarks in (("trained", task.trained), ("all", list(task.problems))):
                of = [[(task.base_seed(seed), against(seed, name)) for seed in seeds] for name in benchmarks]
                name = f"{role} less {'base' if role in AGAINST_BASE else 'reference'}, {decoding}, {place}"
                differences[name] = _difference(of, len(bases))
    result["differences"] = differences
    result["criteria"] = _criteria(means, differences)
    result["met"] = sum(result["criteria"].values())
    return result


def _percent(values: np.ndarray) -> float:
    return round(100 * float(np.mean(values)), 1)


def _difference(of_benchmarks: Sequence[Sequence[tuple[int, np.ndarray]]], bases: int) -> list[float | None]:
    """Mean and interval, in points; with several base models they are the unit, with the mean of their seeds."""
    values = []
    for of_seeds in of_benchmarks:
        units = sorted({base for base, _ in of_seeds})
        by_base = [np.mean([of for base, of in of_seeds if base == unit], axis=0) for unit in units]
        values.append(np.stack(by_base if bases > 1 else [of for _, of in of_seeds]))
    estimate = estimate_combination([Arm(values)], [1.0])
    ends = [None if np.isnan(end) else float(end) for end in estimate.interval()]
    return [None if value is None else round(100 * value, 1) for value in (float(estimate.estimate), *ends)]


def _criteria(
    means: Mapping[str, Sequence[float]], differences: Mapping[str, Sequence[float | None]]
) -> dict[str, bool]:
    """Say of each criterion whether it is met; one that nothing was measured for is left out."""
    met = {f"base {name}": all(low <= mean <= high for mean in means[name]) for name, (low, high) in OF_BASE.items()}
    for decoding in DECODINGS:
        if gain := differences.get(f"reference less base, {decoding}, trained"):
            met[f"gain, {decoding}"] = gain[0] >= LEAST_GAIN and (gain[1] or 0) > 0
        if harm := differences.get(f"half the steps less reference, {decoding}, trained"):
            met[f"half the steps worse, {decoding}"] = harm[2] is not None and harm[2] < 0
        if none := differences.get(f"negative control less reference, {decoding}, trained"):
            met[f"negative control moves nothing, {decoding}"] = none[1] is not None and none[1] <= 0 <= none[2]
    return met


def main() -> None:
    """Make what is missing, measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bases", type=int, default=1, help="pretraining seeds")
    parser.add_argument("--seeds", type=int, default=2, help="training seeds; 0: the base models alone")
    parser.add_argument("--roles", nargs="*", default=ROLES, choices=ROLES)
    arguments = parser.parse_args()
    arithmetic.set_up(1)
    task = Task(Study.read(arguments.study), arguments.out, arguments.bases)
    roles = arguments.roles if arguments.seeds else []
    result = measure(task, range(1, max(arguments.seeds, arguments.bases) + 1), roles)
    (arguments.out / "task_design.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
