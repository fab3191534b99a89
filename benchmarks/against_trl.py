"""Steps an hour of a training beside TRL's GRPO trainer, in turns: one checkpoint, one order of problems, one grader.

    uv venv ../trl && uv pip install --python ../trl trl==1.16.0 torch==2.11.0
    python benchmarks/against_trl.py --run results/runs/smollm2-dapo-s1/run.json --trl ../trl/bin/python --steps 3

The run's problems and base model are read, its results are left alone. Each trainer is a process of its own that makes
the run's first steps in memory, while the other one waits: a step is a rollout batch and its updates. TRL is given the
run's settings in its own names, ``loss_type="dapo"`` without a reference policy, and every reward by this project's
grader, whose time counts on neither side. Processor time is counted; with one thread it is what an idle core needs.
Rewards and lengths of both are put down: the samples differ, their means may not differ by more than luck.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def work_with_trl(settings: dict[str, Any]) -> None:
    """Make a step for every line of the standard input; needs TRL and nothing of this project."""
    import datasets  # type: ignore[import-not-found]
    import torch
    import transformers
    import trl  # type: ignore[import-not-found]

    torch.set_num_threads(settings["threads"])
    started = 0.0

    def rewards(completions: list[str], **_columns: Any) -> list[float]:
        nonlocal started
        before = time.process_time()
        print(json.dumps({"responses": completions}), flush=True)
        values: list[float] = json.loads(sys.stdin.readline())
        started += time.process_time() - before
        return values

    class StepByStep(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal started
            if state.global_step % settings["updates"] == 0:
                sys.stdin.readline()
                started = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % settings["updates"] == 0:
                print(json.dumps({"seconds": time.process_time() - started}), flush=True)

    with tempfile.TemporaryDirectory() as directory:
        trainer = trl.GRPOTrainer(
            model=settings["checkpoint"],
            reward_funcs=rewards,
            args=trl.GRPOConfig(
                **settings["config"],
                output_dir=directory,
                model_init_kwargs={"dtype": settings["dtype"]},
                bf16=settings["dtype"] == "bfloat16",
                use_cpu=True,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                shuffle_dataset=False,
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in settings["prompts"]]),
            callbacks=[StepByStep()],
        )
        print(json.dumps({"version": trl.__version__, "transformers": transformers.__version__}), flush=True)
        trainer.train()


def settings_for_trl(run_file: Path, steps: int, threads: int, batch: int) -> tuple[dict[str, Any], list[str]]:
    """Return a run in TRL's names, and the answers of its prompts in the order in which it takes them.

    ``batch`` rollouts are in one of TRL's passes, which hold the logits of all their tokens.
    """
    from evals.core.files import read_jsonl
    from evals.core.run_spec import LocalRun
    from evals.problems.problem_set import render_prompt
    from rlvr.engines.local.rollout import PromptOrder
    from rlvr.methods.method import compose

    run = LocalRun.read(run_file)
    training = run.training
    loss: Any = compose(run.method, run.method_name, training.max_new_tokens).loss
    problems = PromptOrder(read_jsonl(run.problems / "problems.jsonl"), run.seed).take(
        0, steps * training.prompts_per_step
    )
    rollouts, updates = training.rollouts_per_step, training.updates_per_step
    config = {
        "max_steps": steps * updates,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": rollouts // updates // batch,
        "steps_per_generation": rollouts // batch,
        "num_generations": training.samples_per_prompt,
        "max_completion_length": training.max_new_tokens,
        "temperature": training.temperature,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": training.warmup_updates,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.gradient_clip,
        "beta": 0.0,
        "epsilon": loss.epsilon_low,
        "epsilon_high": loss.epsilon_high,
        "loss_type": "dapo",
    }
    settings = {
        "checkpoint": str(run.base / "checkpoint"),
        "dtype": run.dtype,
        "threads": threads,
        "updates": updates,
        "config": config,
        "prompts": [render_prompt(run.prompt, row["problem"]) for row in problems],
    }
    return settings, [row["answer"] for row in problems for _ in range(training.samples_per_prompt)]


class Trl:
    """TRL's process, whose responses this process grades."""

    def __init__(self, python: Path, settings: dict[str, Any], answers: list[str], pool: Any) -> None:
        self._answers, self._pool = answers, pool
        environment = {**os.environ, "OMP_NUM_THREADS": str(settings["threads"]), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [str(python), str(HERE), "--work"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._tell(settings)
        self.versions = next(self._answer("version"))

    def step(self) -> dict[str, float]:
        """Make a step; returns its processor time, mean reward and mean length in characters."""
        self._tell("step")
        rewards, lengths = list[float](), list[int]()
        for answer in self._answer("seconds"):
            if "seconds" in answer:
                return {
                    "seconds": answer["seconds"],
                    "reward": statistics.mean(rewards),
                    "characters": statistics.mean(lengths),
                }
            responses = answer["responses"]
            references, self._answers = self._answers[: len(responses)], self._answers[len(responses) :]
            from evals.grading import Case

            cases = [Case(response, answer) for response, answer in zip(responses, references, strict=True)]
            verdicts = self._pool.grade(cases)
            graded = [float(verdict.reward) for verdict in verdicts]
            rewards += graded
            lengths += map(len, responses)
            self._tell(graded)
        raise AssertionError("TRL ended before its step")

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()

    def _tell(self, message: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def _answer(self, last: str) -> Iterator[dict[str, Any]]:
        """Yield TRL's messages up to the one with the key ``last``; other lines are TRL's own, and are passed on."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                message = json.loads(line)
                if message.keys() & {"version", "responses", "seconds"}:
                    yield message
                    if last in message:
                        return
            else:
                print(line, end="", file=sys.stderr)
        sys.exit(f"TRL ended with status {self._process.wait()}")


class Ours:
    """The local engine's process, that of ``benchmarks/training.py``."""

    def __init__(self, run_file: Path, threads: int) -> None:
        command = [sys.executable, str(HERE.with_name("training.py")), "--work", "--run", str(run_file)]
        self._process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def step(self) -> dict[str, float]:
        """Make a step; returns its processor time and metrics."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        answer = self._answer()
        metrics = answer["metrics"]
        return {"seconds": answer["seconds"], "reward": metrics["reward_mean"], "tokens": metrics["tokens_generated"]}

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"'):
                answer: dict[str, Any] = json.loads(line)
                return answer
        sys.exit(f"the local engine ended with status {self._process.wait()}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Alternate the two trainers and compare within each step."""
    from evals.grading import GradingPool

    settings, answers = settings_for_trl(arguments.run, arguments.steps, arguments.threads, arguments.batch)
    if arguments.dtype:
        settings["dtype"] = arguments.dtype
    with GradingPool(workers=1) as pool:
        ours, trl = Ours(arguments.run, arguments.threads), Trl(arguments.trl, settings, answers, pool)
        rows: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
        for _ in range(arguments.steps):
            rows["ours"].append(ours.step())
            rows["trl"].append(trl.step())
        ours.end()
        trl.end()
    pairs = list(zip(rows["ours"], rows["trl"], strict=True))[1:]  # the first has what is done once
    ratios = sorted(other["seconds"] / own["seconds"] for own, other in pairs)
    return {
        "run": str(arguments.run),
        "threads": arguments.threads,
        **{"trl": trl.versions, "trl_dtype": settings["dtype"]},
        "times_as_many_steps_an_hour": {
            "median": round(statistics.median(ratios), 2),
            "lowest": round(ratios[0], 2),
            "highest": round(ratios[-1], 2),
        },
        "steps": {side: [{key: round(row[key], 3) for key in row} for row in rows[side]] for side in rows},
    }


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run.json; its paths are relative to this directory")
    parser.add_argument("--trl", type=Path, help="the Python of an environment with TRL")
    parser.add_argument("--steps", type=int, default=3, help="steps of each; the first is not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="rollouts of one of TRL's passes with gradients")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="TRL's weights; default: the run's")
    parser.add_argument("--out", type=Path, default=Path("against_trl.json"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work_with_trl(json.loads(sys.stdin.readline()))
        return
    if arguments.run is None or arguments.trl is None or arguments.steps < 2:
        parser.error("--run and --trl are needed, and at least 2 steps")
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
