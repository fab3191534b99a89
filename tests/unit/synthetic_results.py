"""A fabricated results/ tree in the formats of docs/architecture.md, for tests and for looking at tables and figures.

``python -m tests.unit.synthetic_results DIRECTORY`` writes one to look at.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evals.core.files import fingerprint, sha256_file, write_json, write_jsonl, write_parquet, write_text
from evals.core.manifest import Manifest, hash_files
from evals.core.records import BASE, Run, Score
from evals.results import Results, read_results
from tests.artifacts import vouch_for

# Method -> (title, true gain over the base model in logits).
METHODS = {
    "grpo": ("GRPO", 1.3),
    "dapo": ("DAPO", 1.6),
    "sapo": ("SAPO", 1.7),
    "gspo": ("GSPO", 0.7),
    "delta": ("DelTA", 2.3),
    "dapo_forking_tokens": ("DAPO, forking tokens", 1.5),
    "dapo_query_preserved": ("DAPO, query-preserved", 1.65),
    "dapo_query_preserved_reward_balanced": ("DAPO, query-preserved, reward-balanced", 1.6),
}
# Method -> degrees to DAPO's gradient; methods that differ in their batching measure none.
CONTRASTS = {"dapo": 0.0, "grpo": 4.6, "sapo": 15.0, "gspo": 61.4, "delta": 8.3, "dapo_forking_tokens": 51.8}
FLOOR = 5.0
BENCHMARKS = ("chain_3", "chain_4", "chain_6", "chain_long", "nested_sums")
_BENCHMARK_LOGITS = (0.2, -0.4, -1.1, -2.2, -1.0)


def full_size_results(methods: Mapping[str, Sequence[str]], sizes: Mapping[str, int], samples: int) -> Results:
    """Made-up results of one seed and the base model.

    Args:
        methods: of each model; the first is the reference.
        sizes: benchmark -> its number of problems.
        samples: for each problem.
    """
    generator = np.random.default_rng(1)
    runs, scores = [], {}
    for model, names in methods.items():
        for name in (BASE, *names):
            seed = None if name == BASE else 1
            run = Run(run=f"{model}-{name}", model=model, method=name, seed=seed, title=name)
            runs.append(run)
            for benchmark, problems in sizes.items():
                counts = generator.binomial(samples, generator.beta(1, 2, problems))
                scores[run.run, benchmark] = Score(
                    run=run.run, model=model, method=name, seed=seed, average_at_k=float(counts.mean() / samples),
                    standard_error=None, confidence_interval=None, sampling_standard_error=None,
                    pass_at_k={str(samples): float((counts > 0).mean())}, g_pass_at_k={}, majority_at_k=0.5,
                    truncation_rate=0.0, no_answer_rate=0.0, timeout_rate=0.0, unparsable_rate=0.0, mean_tokens=1.0,
                    total_tokens=1, correct_counts=tuple(counts.tolist()),
                )  # fmt: skip
    reference = next(iter(methods.values()))[0]
    return Results(tuple(runs), tuple(sizes), dict.fromkeys(sizes, samples), scores, {}, reference, 0.95)


@dataclass(frozen=True)
class Study:
    """Paths of a fabricated study."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def runs_file(self) -> Path:
        return self.root / "runs.json"

    @property
    def study_file(self) -> Path:
        return self.root / "study.json"

    @property
    def scores(self) -> list[Path]:
        return sorted(
            path for path in (self.results / "scores").glob("*.json") if not path.name.endswith(".manifest.json")
        )

    @property
    def audits(self) -> list[Path]:
        """Those of the first benchmark first, in the order of the run sheet."""
        runs = [str(run["run"]) for run in self.runs()]
        names = sorted(path.stem for path in (self.results / "scores").glob("*[!t].json"))
        return [self.results / "grades" / run / name / "audit.json" for name in names for run in runs]

    @property
    def comparisons(self) -> Path:
        return self.results / "comparisons.json"

    def read(self) -> Results:
        """Everything that was evaluated, as tables and figures get it."""
        return read_results(self.runs_file, self.scores, self.comparisons)

    def runs(self) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = json.loads(self.runs_file.read_text())
        return runs


def write_small_study(root: Path, steps: int) -> Study:
    """Write a study of a base model and three methods, with two seeds and two benchmarks of 12 problems."""
    methods, benchmarks = ("grpo", "dapo", "delta"), ("chain_3", "nested_sums")
    return write_study(root, methods, (1, 2), benchmarks, steps, problems=12)


def write_study(
    root: Path,
    methods: tuple[str, ...] = tuple(METHODS),
    seeds: tuple[int, ...] = (1, 2, 3),
    benchmarks: tuple[str, ...] = BENCHMARKS,
    steps: int = 60,
    problems: int = 30,
    samples_per_problem: int = 32,
) -> Study:
    """Write a whole study under ``root``; the same arguments write the same bytes but for manifests' dates."""
    study = Study(root)
    generator = np.random.default_rng(20)
    runs = [{"run": "tiny-base", "model": "tiny", "method": "base", "seed": None, "title": "Base model"}]
    runs += [
        {"run": f"tiny-{method}-s{seed}", "model": "tiny", "method": method, "seed": seed, "title": METHODS[method][0]}
        for method in methods
        for seed in seeds
    ]
    write_json(study.runs_file, runs)
    write_json(
        study.study_file,
        {
            "study": "laptop",
            "benchmarks": benchmarks,
            "seeds": list(seeds),
            "training": {"steps": steps, "learning_rate": 0.0003},
        },
    )
    seed_effects = {run["run"]: 0.0 if run["seed"] is None else generator.normal(0, 0.12) for run in runs}
    write_text(study.results / "base/tiny/checkpoint/model.safetensors", "weights of the base model")
    base_parameters = {"model": {"name": "tiny", "layers": 3}}
    _write_manifest(
        study.results / "base/tiny", "base_model", ["checkpoint/model.safetensors"], base_parameters, {"seconds": 61.0}
    )
    for name in (*benchmarks, "train"):
        _write_problems(study.results / "problems" / name, name, problems)
    for run in runs:
        if run["method"] != "base":
            _write_training(study.results, run, METHODS[str(run["method"])][1], steps, generator)
    counts: dict[str, dict[str, np.ndarray]] = {}
    for index, benchmark in enumerate(benchmarks):
        difficulty = generator.normal(0, 1.4, problems)
        counts[benchmark] = {}
        for run in runs:
            gain = 0.0 if run["method"] == "base" else METHODS[str(run["method"])][1]
            logits = _BENCHMARK_LOGITS[index % 5] + difficulty + gain + seed_effects[str(run["run"])]
            counts[benchmark][str(run["run"])] = generator.binomial(samples_per_problem, 1 / (1 + np.exp(-logits)))
        _write_scores(study.results, benchmark, runs, counts[benchmark], samples_per_problem)
        _write_audits(study.results, benchmark, runs, counts[benchmark], samples_per_problem)
        for run in runs:
            _write_samples(study.results, str(run["run"]), benchmark, counts[benchmark][str(run["run"])])
    for run in runs:
        for stage in ("sample", "grade"):
            seconds = generator.uniform(2, 4) if stage == "sample" else generator.uniform(0.2, 0.5)
            _write_cost(study.results / "costs" / stage / f"{run['run']}.tsv", seconds, 310.0)
    _write_comparisons(study, runs, counts, samples_per_problem)
    return study


def _write_problems(directory: Path, name: str, count: int) -> None:
    rows = [
        {
            "id": f"{name}-{number:03d}",
            "problem": f"Compute (({number} + 3) * 7) mod 10, step by step. Is 1 < 2?",
            "answer": str(((number + 3) * 7) % 10),
            "family": name,
        }
        for number in range(count)
    ]
    write_jsonl(directory / "problems.jsonl", rows)
    _write_manifest(directory, "problems", ["problems.jsonl"], {"set": name}, {"problems": count})


def _write_training(
    results: Path, run: dict[str, Any], gain: float, steps: int, generator: np.random.Generator
) -> None:
    directory = results / "runs" / run["run"]
    step = np.arange(1, steps + 1)
    rise = 1 - np.exp(-step / 20)
    clipped = 0.004 * rise + generator.uniform(0, 0.002, steps)
    frame = pd.DataFrame(
        {
            "step": step,
            "reward_mean": 0.35 + 0.2 * gain * rise + generator.normal(0, 0.02, steps),
            "response_length_mean": 22 + 2 * rise + generator.normal(0, 0.3, steps),
            "truncation_rate": np.clip(generator.normal(0.01, 0.004, steps), 0, 1),
            "entropy": 0.42 * np.exp(-step / 30) + 0.02 + generator.normal(0, 0.004, steps),
            "clip_fraction": clipped,
            "clip_fraction_lower": clipped / 2,
            "clip_fraction_upper": clipped / 2,
            "approximate_kl": 0.001 * rise,
            "grad_norm": 0.4 + generator.normal(0, 0.03, steps),
            "loss": generator.normal(0, 0.002, steps),
            "learning_rate": np.full(steps, 3e-4),
            "groups_mixed_fraction": np.full(steps, 0.7),
            "tokens_generated": generator.integers(5000, 6000, steps),
            "optimizer_steps": np.full(steps, 2),
            "prompts_sampled": np.full(steps, 32),
            "rollouts_discarded_fraction": np.full(steps, 0.1),
            "token_weight_mean": np.full(steps, 1.0 if run["method"] == "delta" else np.nan),
            "token_weight_p05": np.full(steps, np.nan),
            "token_weight_p95": np.full(steps, np.nan),
            "seconds_rollout": generator.uniform(0.4, 0.6, steps),
            "seconds_reward": np.full(steps, 0.01),
            "seconds_log_probs": np.full(steps, 0.1),
            "seconds_token_weights": np.full(steps, 0.02),
            "seconds_update": np.full(steps, 0.4),
            "seconds_step": np.full(steps, 1.1),
            "peak_memory_bytes": np.full(steps, 520 * 2**20),
            "unjudged_timeout": np.full(steps, 2 if run["method"] == "delta" else 0),
            "unjudged_memory": np.full(steps, 0),
        }
    )
    if run["method"] == "gspo":
        frame["entropy"] = np.nan
    if (degrees := CONTRASTS.get(run["method"])) is not None:
        measured = step % 15 == 8
        frame["contrast_degrees"] = np.where(measured, degrees, np.nan)
        frame["contrast_floor_degrees"] = np.where(measured, FLOOR, np.nan)
        frame["contrast_slope_degrees"] = 1.2 * degrees
    write_parquet(directory / "metrics.parquet", frame)
    write_text(directory / "checkpoint" / "model.safetensors", f"weights of {run['run']}")
    _write_manifest(
        directory,
        "run",
        ["metrics.parquet", "checkpoint/model.safetensors"],
        {
            "run": run["run"],
            "model": {"name": "tiny", "layers": 3},
            "method": {"name": run["method"], "loss": {"clip_low": 0.2, "clip_high": 0.28}},
            "training": {"steps": steps, "learning_rate": 0.0003},
            "seed": run["seed"],
        },
        {
            "steps": steps,
            "optimizer_steps": 2 * steps,
            "tokens_generated": int(frame["tokens_generated"].sum()),
            "seconds": 66.0,
        },
        inputs={"results/problems/train/problems.jsonl": sha256_file(results / "problems/train/problems.jsonl")},
    )
    _write_cost(results / "costs" / "train" / f"{run['run']}.tsv", float(generator.uniform(60, 80)), 540.0)


def score_row(run: dict[str, Any], counts: np.ndarray, k: int) -> dict[str, Any]:
    """A row of a scores file; all but the counts and the average is made up."""
    rates = counts / k
    average, error = float(rates.mean()), float(rates.std(ddof=1) / np.sqrt(len(rates)))
    return {
        **dict.fromkeys(Score.model_fields.keys() - {"base"}, 0.0),
        **{key: run[key] for key in ("run", "model", "method", "seed")},
        "average_at_k": average,
        "standard_error": error,
        "confidence_interval": [max(0.0, average - 2.045 * error), min(1.0, average + 2.045 * error)],
        "sampling_standard_error": error / 5,
        "pass_at_k": {"1": average, "8": min(1.0, average * 1.3)},
        "g_pass_at_k": {"0.5": average * 0.9, "0.75": average * 0.6, "1": average * 0.2},
        "majority_at_k": min(1.0, average * 1.1),
        "truncation_rate": 0.002,
        "no_answer_rate": 0.011,
        "timeout_rate": 0.0,
        "unparsable_rate": 0.0,
        "mean_tokens": 21.3,
        "total_tokens": 20448,
        "correct_counts": [int(count) for count in counts],
    }


def write_scores_file(path: Path, rows: Sequence[Mapping[str, Any]], k: int, **further: Any) -> Path:
    """Write the scores of runs on the benchmark that the file is called after, and the manifest that vouches for it."""
    ids = [str(number) for number in range(len(rows[0]["correct_counts"]))]
    content = {"benchmark": path.stem, "samples_per_problem": k, "problem_ids": ids, "scores": rows}
    write_json(path, {**content, **further})
    vouch_for(path, "scores", path.with_suffix(".manifest.json"))
    return path


def _write_scores(
    results: Path, benchmark: str, runs: list[dict[str, Any]], counts: dict[str, np.ndarray], k: int
) -> None:
    rows = [score_row(run, counts[run["run"]], k) for run in runs]
    ids = [f"{benchmark}-{number:03d}" for number in range(len(counts[runs[0]["run"]]))]
    write_json(
        results / "scores" / f"{benchmark}.json",
        {"benchmark": benchmark, "samples_per_problem": k, "problem_ids": ids, "scores": rows},
    )
    write_json(results / "scores" / f"{benchmark}.manifest.json", {"schema": 1, "kind": "scores"})


def _write_audits(
    results: Path, benchmark: str, runs: list[dict[str, Any]], counts: dict[str, np.ndarray], k: int
) -> None:
    for run in runs:
        samples = k * len(counts[run["run"]])
        second = {"compared": samples, "failed": 0, "only_ours": 1, "only_second": 2, "disagreements": []}
        failures = {"truncated": 2, "no_answer": 11, "timeouts": 0, "unparsable": 0, "other_failures": 0}
        own = {"run": run["run"], "samples": samples, "correct": int(counts[run["run"]].sum()), **failures}
        audit = {**own, "no_second_because": None, "second": second}
        grader = {"name": "math-verify", "version": "0.9.0"}
        content = {"benchmark": benchmark, "second_grader": grader, "audit": audit}
        write_json(results / "grades" / str(run["run"]) / benchmark / "audit.json", content)


def _write_samples(results: Path, run: str, benchmark: str, counts: np.ndarray) -> None:
    samples, grades = [], []
    for number, count in enumerate(counts):
        answer = ((number + 3) * 7) % 10
        for sample in range(4):
            correct = sample < round(4 * count / 32)
            given = answer if correct else (answer + 1) % 10
            text = f"{number} + 3 = {(number + 3) % 10}; * 7 = {given}. The answer is \\boxed{{{given}}}"
            identity = {"problem_id": f"{benchmark}-{number:03d}", "sample": sample}
            samples.append(identity | {"text": text, "tokens": 21, "finish_reason": "stop"})
            grades.append(
                identity
                | {"correct": correct, "answer": str(given), "reason": "match" if correct else "mismatch"}
                | {"seconds": 0.0001, "tokens": 21, "finish_reason": "stop"}
            )
    for kind, rows in (("samples", samples), ("grades", grades)):
        directory = results / kind / run / benchmark
        write_jsonl(directory / f"{kind}.jsonl.bz2", rows)
        _write_manifest(
            directory, kind, [f"{kind}.jsonl.bz2"], {"run": run, "benchmark": benchmark}, {"rows": len(rows)}
        )


def _write_comparisons(
    study: Study, runs: list[dict[str, Any]], counts: dict[str, dict[str, np.ndarray]], k: int
) -> None:
    """Plain paired t statistics, corrected by Bonferroni: a stand-in for evals.statistics, which has its own tests."""
    rows = []
    methods = [method for method in METHODS if any(run["method"] == method for run in runs)]

    def rates(method: str, benchmark: str) -> np.ndarray:
        chosen = [counts[benchmark][run["run"]] / k for run in runs if run["method"] == method]
        return np.mean(chosen, axis=0)

    for method in methods:
        for against in ("dapo", "base"):
            if method == against:
                continue
            for benchmark in (*counts, "all"):
                names = list(counts) if benchmark == "all" else [benchmark]
                ours = np.concatenate([rates(method, name) for name in names])
                theirs = np.concatenate([rates(against, name) for name in names])
                difference = ours - theirs
                error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
                mean = float(difference.mean())
                p_value = float(min(1.0, np.exp(-0.717 * abs(mean / error) - 0.416 * (mean / error) ** 2)))
                family = sum(other != against for other in methods) if benchmark == "all" else len(counts)
                adjusted = min(1.0, p_value * family)
                alike = against == "dapo" and CONTRASTS.get(method, FLOOR + 1) < FLOOR
                found_none = "no contrast with the reference" if alike else "not distinguishable"
                verdict = found_none if adjusted > 0.05 else "better" if mean > 0 else "worse"
                seeds = sum(run["method"] == method for run in runs)
                rows.append(
                    {
                        "model": "tiny",
                        "method": method,
                        "against": against,
                        "benchmark": benchmark,
                        "method_average": float(ours.mean()),
                        "against_average": float(theirs.mean()),
                        "difference": mean,
                        "standard_error": error,
                        "confidence_interval": [mean - 2 * error, mean + 2 * error],
                        "p_value": p_value,
                        "p_value_holm": adjusted,
                        "minimum_detectable_effect": 2.8 * error,
                        "seeds": seeds,
                        "against_seeds": 1 if against == "base" else seeds,
                        "problems": len(ours),
                        "verdict": verdict,
                        "fell": 0,
                        "against_fell": None if against == "base" else 0,
                    }
                )
    write_json(
        study.comparisons,
        {
            "reference_method": "dapo",
            "confidence": 0.95,
            "bootstrap_resamples": 10000,
            "permutations": 100000,
            "comparisons": rows,
            "fallen": [],
            "contrasts": [
                {"model": "tiny", "method": method, "against": "dapo", "degrees": degrees, "floor_degrees": FLOOR}
                | {"slope_degrees": 1.2 * degrees, "ratio_interval": [degrees / FLOOR - 0.2, degrees / FLOOR + 0.1]}
                | {"is_above_floor": degrees - FLOOR > 1, "seeds": sum(run["method"] == method for run in runs)}
                for method, degrees in CONTRASTS.items()
                if method in methods and method != "dapo"
            ],
        },
    )


def _write_cost(path: Path, seconds: float, memory: float) -> None:
    header = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time"
    minutes, rest = divmod(int(seconds), 60)
    row = f"{seconds:.4f}\t0:{minutes:02d}:{rest:02d}\t{memory:.2f}\t2000.00\t{memory:.2f}\t{memory:.2f}"
    write_text(path, f"{header}\n{row}\t0.00\t1.00\t98.00\t{seconds:.2f}\n")


def _write_manifest(
    directory: Path,
    kind: str,
    outputs: list[str],
    parameters: dict[str, Any],
    details: dict[str, Any],
    inputs: dict[str, str] | None = None,
) -> None:
    hashes = hash_files(directory, *(directory / name for name in outputs))
    identity = fingerprint({"kind": kind, "parameters": parameters, "outputs": hashes})
    Manifest(kind, inputs or {}, hashes, parameters, identity, details).write(directory / "manifest.json")


if __name__ == "__main__":
    write_study(Path(sys.argv[1]))
