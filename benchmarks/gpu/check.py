"""The first facts about a GPU in fifteen minutes of a card: does the local engine run, agree, repeat itself and fit.

    make gpu-check                                           # or: python benchmarks/gpu/check.py --out results.jsonl
    make gpu-check ARGS="--run results/runs/RUN/run.json"    # of the base model of a run of yours, and its steps
    make gpu-check ARGS="--shapes qwen3-0.6b --tokens 768 --layers-again --only dapo,memory"
    python benchmarks/gpu/check.py --device cpu --tiny       # the smallest sizes, to try the script

Nothing is downloaded: models have random weights and the published shapes of --shapes, problems are made up, and every
other response is taken for right. With --run the base model is that run's. Each measurement is a line of JSON. One that
fails is a line with its error, and the next one is made; one that no longer fits into --budget seconds is a line that
says so. `ok` is false where a number is outside its limit (--apart, --share).
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_runs import SHAPES, Alternating, run_of, write_model, write_training_problems
from evals.core.files import canonical_json, sha256_file, write_text
from evals.core.run_spec import Execution, LocalRun
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.memory import largest_passes, products
from rlvr.engines.local.policy import TokenBatch, load_policy, token_log_probs
from rlvr.engines.local.run import peak_memory, time_on
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA
from rlvr.study.catalogue import load_catalogue

METHODS = ("dapo", "delta", "gspo", "fipo", "clip_cov", "delta_top_k_hidden_gradient_proxy")
SAME_STEP = ("dapo", "delta", "grpo", "gspo", "sapo", "dapo_forking_tokens", "fipo", "low_probability")
STATES = "state/*/step-*"


class Check:
    """The measurements of one card."""

    def __init__(self, chosen: argparse.Namespace, work: Path) -> None:
        self.chosen, self.work, self.started, self.failed = chosen, work, time.monotonic(), 0
        self.device = torch.device(chosen.device)
        self.problems = write_training_problems(work)
        self.base = LocalRun.read(chosen.run).base if chosen.run else write_model(work, chosen.shapes)
        self.small = write_model(work, "laptop")

    def run(self, method: str, dtype: str, **training: Any) -> LocalRun:
        """Resolve a run of the model of ``--shapes``."""
        chosen = self.chosen
        sizes = {"prompts_per_step": chosen.prompts, "max_new_tokens": chosen.tokens}
        return run_of(method, self.base, self.problems, dtype, sizes | training)

    def small_run(self, method: str, **training: Any) -> LocalRun:
        """Resolve a run of the default study's model in float32."""
        sizes = {"prompts_per_step": self.chosen.prompts, "max_new_tokens": self.chosen.tokens}
        return run_of(method, self.small, self.problems, "float32", sizes | training)

    def learner(self, run: LocalRun, device: str | None = None) -> Learner:
        """Begin a run on the card, or on another device."""
        return Learner(run, device or self.chosen.device, self.chosen.layers_again)

    def line(self, what: str, **values: Any) -> None:
        """Print a line, and add it to the file of results."""
        text = json.dumps({"what": what, "at": round(time.monotonic() - self.started, 1), **values}, default=str)
        print(text, flush=True)
        with self.chosen.out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def measure(self, what: str, function: Callable[[], Mapping[str, Any]], needs: float) -> None:
        """Make a measurement of ``--only``, unless fewer seconds are left of the budget than it ``needs``."""
        if self.chosen.only and not any(word in what for word in self.chosen.only.split(",")):
            return
        left = self.chosen.budget - (time.monotonic() - self.started)
        if left < (0 if self.chosen.tiny else needs):
            self.line(what, skipped=f"{left:.0f} s are left of the budget, it needs {needs:.0f}")
            return
        try:
            started = time_on(self.device)
            values = dict(function())
            self.line(what, seconds=round(time_on(self.device) - started, 2), **{"ok": True, **values})
            self.failed += not values.get("ok", True)
        except Exception as error:  # of any kind: the other measurements are made all the same
            self.failed += 1
            where = [
                f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
            ]
            self.line(what, ok=False, error=f"{type(error).__name__}: {error}"[:500], where=where[-6:])
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def environment(self) -> dict[str, Any]:
        """Name versions and card, and measure a large product and a large copy."""
        size = 256 if self.chosen.tiny else 8192
        matrix = torch.randn(size, size, device=self.device, dtype=torch.bfloat16)
        product, copy = (self.time(call) for call in (lambda: matrix @ matrix, lambda: matrix.clone()))
        card = torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor()
        rates = {"bfloat16_tflops": 2 * size**3 / product / 1e12, "copied_gb_per_second": 4 * size**2 / copy / 1e9}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
        return {"card": card, **versions, **{name: round(rate, 1) for name, rate in rates.items()}}

    def time(self, function: Callable[[], object], times: int = 3) -> float:
        """Return the shortest time in seconds of a few calls, after one that is not counted."""
        function()
        seconds = []
        for _ in range(times):
            started = time_on(self.device)
            function()
            seconds.append(time_on(self.device) - started)
        return min(seconds)

    def steps(self, method: str, dtype: str, **training: Any) -> dict[str, Any]:
        """Take two steps of a method; the numbers are the second one's."""
        learner = self.learner(self.run(method, dtype, **training))
        rows = [learner.step(Alternating()) for _ in range(2)]  # type: ignore[arg-type]
        seconds = {name: round(value, 3) for name, value in rows[1].items() if name.startswith("seconds")}
        rate = rows[1]["tokens_generated"] / rows[1]["seconds_rollout"]
        share = rows[1]["seconds_token_weights"] / rows[1]["seconds_step"]
        return {
            **{"sampled_tokens_per_second": round(rate), "peak_mib": peak_memory(self.device) >> 20, **seconds},
            **{"share_of_token_weights": round(share, 4), "losses": [row["loss"] for row in rows]},
            "ok": all(row["grad_norm"] > 0 for row in rows),
        }

    def against_cpu(self, dtype: str) -> dict[str, Any]:
        """Compare log-probabilities and the gradient with those of the CPU in float32."""
        batch = TokenBatch([[5, 6, 7], [8, 9]] * 8, [list(range(3, 3 + min(48, self.chosen.tokens)))] * 16)
        sides = []
        for device, kind in (("cpu", "float32"), (self.chosen.device, dtype)):
            policy = load_policy(Checkpoint(self.base / "checkpoint"), device, kind)
            log_probs = token_log_probs(policy, batch, 1.0)
            log_probs.mean().backward()  # type: ignore[no-untyped-call]
            gradient = torch.cat([part.grad.flatten().cpu() for part in policy.parameters() if part.grad is not None])
            sides.append((log_probs.detach().cpu(), gradient))
        (first, slope), (second, other) = sides
        apart = (first - second).abs()
        cosine = float(torch.nn.functional.cosine_similarity(slope.double(), other.double(), dim=0))
        limit = self.chosen.apart * (1 if dtype == "float32" else 100)
        sizes = {"log_probs_apart": float(apart.mean()), "at_most": float(apart.max()), "gradients_cosine": cosine}
        return {**sizes, "ok": float(apart.mean()) < limit and cosine > 0.99}

    def same_step(self, method: str) -> dict[str, Any]:
        """Give the rollouts of the CPU's first step to the card, and compare weights, metrics and the update."""
        run = self.small_run(method)
        changes, metrics, weights = [], [], []
        sampled: list[Any] = []
        for device in ("cpu", self.chosen.device):
            learner = self.learner(run, device)
            before = torch.cat([part.detach().cpu().flatten() for part in learner.model.parameters()])
            draw = learner._sample

            def sampled_once(*given: Any, draw: Any = draw, learner: Learner = learner) -> Any:
                """Sample on the CPU, and take the same rollouts on the card."""
                if not sampled:
                    sampled.append((learner.position, *draw(*given)))
                position, rollouts, *others = sampled[0]
                learner.position.prompts_used = position.prompts_used
                device = learner.model.device
                names = ("log_probs", "entropies", "drawn_entropies")
                return replace(rollouts, **{name: getattr(rollouts, name).to(device) for name in names}), *others

            learner._sample = sampled_once  # type: ignore[method-assign]
            prepared = learner.prepare(Alternating())  # type: ignore[arg-type]
            weights.append(prepared.weights.cpu())
            metrics.append(learner.update(prepared))
            changes.append(torch.cat([part.detach().cpu().flatten() for part in learner.model.parameters()]) - before)
        apart = {
            "token_weights_apart": float((weights[0] - weights[1]).abs().max()),
            **{
                f"{name}_relative": abs(metrics[0][name] - metrics[1][name]) / max(1e-6, abs(metrics[0][name]))
                for name in ("grad_norm", "entropy")
            },
            "update_cosine": float(torch.nn.functional.cosine_similarity(*(c.double() for c in changes), dim=0)),
        }
        same = apart["token_weights_apart"] < 1e-3 and apart["grad_norm_relative"] < 1e-3
        return {**{name: float(f"{value:.6g}") for name, value in apart.items()}, "ok": same}

    def twice(self, dtype: str, **training: Any) -> dict[str, Any]:
        """Take the same two steps twice: whether they have the same bits is a fact, and no fault."""
        weights = []
        for _ in range(2):
            learner = self.learner(self.run("delta", dtype, **training))
            for _ in range(2):
                learner.step(Alternating())  # type: ignore[arg-type]
            weights.append([part.detach().cpu() for part in learner.model.parameters()])
        apart = max(float((one - two).abs().max()) for one, two in zip(*weights, strict=True))
        return {"same_bytes": apart == 0, "weights_apart": apart}

    def killed(self, how: signal.Signals) -> dict[str, Any]:
        """Train by the command, whole and ended by a signal after step 2; whether the bytes are the same is a fact."""
        run, digests = self.small_run("delta", steps=6), []
        for name in ("whole", "ended"):
            directory = self.work / f"{name}-{how.name}"
            write_text(directory / "run.json", canonical_json(run.to_json()))
            words = [sys.executable, "-m", "rlvr", "train", str(directory / "run.json"), "--threads", "1"]
            words += ["--device", self.chosen.device, "--checkpoint-interval", "1"]
            with (directory / "log").open("w") as log:
                process = subprocess.Popen(words, stdout=log, stderr=log)
                while name == "ended" and process.poll() is None and not list(directory.glob(f"{STATES}2")):
                    time.sleep(0.01)
                if name == "ended":
                    process.send_signal(how)
                code = process.wait()
                if name == "ended":
                    subprocess.run(words, stdout=log, stderr=log, check=False)
            weights = directory / "checkpoint" / "model.safetensors"
            digests.append(sha256_file(weights) if weights.is_file() else (directory / "log").read_text()[-300:])
        continued = "continues after step" in (directory / "log").read_text()
        return {"code": code, "continued": continued, "same_bytes": digests[0] == digests[1], "ok": weights.is_file()}

    def sampling(self, dtype: str, rows: int, tokens: int) -> dict[str, Any]:
        """Sample by the local sampler and by transformers' ``generate``, whose responses end nowhere."""
        from transformers import AutoModelForCausalLM

        checkpoint = Checkpoint(self.base / "checkpoint")
        prompts = [[5 + number % 7, 6, 7, 8 + number % 5] * 8 for number in range(rows // 8)]
        names = [[f"{row}/{number}" for number in range(8)] for row in range(len(prompts))]
        parameters = SamplingParameters(max_new_tokens=tokens, temperature=1.0, sampling_batch_size=rows)
        sampler = load_policy(checkpoint, self.chosen.device, dtype).sampler()
        never = [checkpoint.config["vocab_size"] + 1]
        local = self.time(lambda: sampler(prompts, names, parameters, never, None), 1)
        model = AutoModelForCausalLM.from_pretrained(self.base / "checkpoint", dtype=getattr(torch, dtype))
        model = model.to(self.device).eval()
        ids = torch.tensor([prompt for prompt in prompts for _ in range(8)], device=self.device)
        options = {"do_sample": True, "top_k": 0, "max_new_tokens": tokens, "min_new_tokens": tokens}
        generate = self.time(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options), 1)
        count = len(ids) * tokens
        rates = {"tokens_per_second": round(count / local), "generate_tokens_per_second": round(count / generate)}
        return {**rates, "times_as_fast": round(generate / local, 2), "milliseconds_a_token": 1000 * local / tokens}

    def memory(self, dtype: str) -> dict[str, Any]:
        """Hold the sum of five products against what the largest passes take."""
        run = self.run("delta", dtype)
        learner = self.learner(run)
        for make in largest_passes(learner).values():
            make()
        execution = Execution(device=self.chosen.device, gradient_checkpointing=self.chosen.layers_again)
        expected = sum(products(run, execution).values())
        return {"measured_mib": peak_memory(self.device) >> 20, "sum_mib": expected >> 20}

    def delta(self, tokens: int, width: int) -> dict[str, Any]:
        """Weigh tokens at a width, beside one reading of their hidden states and a pass of their step."""
        length = min(64 if self.chosen.tiny else 2048, tokens)
        rollouts = tokens // length
        hidden = torch.randn(tokens, width, device=self.device, dtype=torch.bfloat16)
        batch = RolloutBatch(
            advantages=torch.randn(rollouts, device=self.device),
            old_log_probs=-torch.rand(rollouts, length, device=self.device),
            entropies=torch.rand(rollouts, length, device=self.device),
            response_mask=torch.ones(rollouts, length, dtype=torch.bool, device=self.device),
            mini_batch_ids=torch.arange(rollouts, device=self.device) % 4,
            group_ids=torch.arange(rollouts, device=self.device) // 8,
            token_ids=torch.zeros(rollouts, length, dtype=torch.long, device=self.device),
            temperature=1.0,
            generator=torch.Generator().manual_seed(1),
            hidden_states=hidden,
        )
        seconds, read = self.time(lambda: DelTA()(batch)), self.time(lambda: hidden.clone())
        # The products of a pass with its gradient through 36 layers, of 12 width^2 weights each.
        weight = torch.randn(width, width, device=self.device, dtype=torch.bfloat16)
        step = self.time(lambda: hidden @ weight) * 12 * 3 * 36
        share = seconds / (seconds + step)
        sizes = {"milliseconds": round(1000 * seconds, 2), "readings": round(seconds / read, 1)}
        return {**sizes, "share_of_products": round(share, 4), "ok": self.chosen.tiny or share < self.chosen.share}

    def own_training(self, run_file: Path) -> dict[str, Any]:
        """Take steps of the user's own run, graded as it is."""
        run = LocalRun.read(run_file)
        learner, rewards = self.learner(run), []
        with GradingPool(workers=1, verifier=run.verifier_file) as pool:
            while len(rewards) < self.chosen.steps and time.monotonic() - self.started < self.chosen.budget:
                row = learner.step(pool)
                learner.position.metrics.append(row)
                rewards.append(round(row["reward_mean"], 4))
        return {"steps": len(rewards), "rewards": rewards, "peak_mib": peak_memory(self.device) >> 20}


def main() -> None:
    """Make the measurements, what counts most first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.jsonl"), help="file that the lines are added to")
    parser.add_argument("--budget", type=float, default=840.0, help="seconds in all")
    parser.add_argument("--only", default="", help="words: only measurements with one of them in their name, by comma")
    parser.add_argument(
        "--apart",
        type=float,
        default=1e-3,
        help="largest mean difference of log-probabilities in float32; in bfloat16 100 times as much",
    )
    parser.add_argument("--share", type=float, default=0.03, help="largest part of a step for DelTA's weights")
    parser.add_argument("--shapes", choices=sorted(SHAPES), help="default: smollm2-135m")
    parser.add_argument("--layers-again", action="store_true", help="compute layers again for the gradient")
    for name, usual, _ in (sizes := (("prompts", 32, 4), ("tokens", 64, 4))):
        parser.add_argument(f"--{name}", type=int, help=f"default: {usual}")
    parser.add_argument(
        "--methods",
        default=",".join(SAME_STEP),
        help="whose first step is compared with the CPU's, by comma; all: every method of the catalogue",
    )
    parser.add_argument("--tiny", action="store_true", help="sizes that a CPU does in seconds")
    parser.add_argument(
        "--run", type=Path, help="run.json of a training of your own, in the directory that its paths are of"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps of --run")
    chosen = parser.parse_args()
    for name, usual, small in (*sizes, ("shapes", "smollm2-135m", "tiny")):
        if getattr(chosen, name) is None:
            setattr(chosen, name, small if chosen.tiny else usual)
    claim_one(chosen.device)
    with tempfile.TemporaryDirectory() as work:
        check = Check(chosen, Path(work))
        check.measure("environment", check.environment, 5)
        for dtype in ("bfloat16", "float32"):
            check.measure(f"log-probabilities against the CPU, {dtype}", lambda d=dtype: check.against_cpu(d), 20)
        for name in METHODS:
            check.measure(f"two steps of {name}", lambda m=name: check.steps(m, "bfloat16"), 20)
        for name in load_catalogue() if chosen.methods == "all" else chosen.methods.split(","):
            check.measure(f"the CPU's first step of {name}", lambda m=name: check.same_step(m), 5)
        for what, training in (("shared prompts", {"share_prompts": True}), ("top-p", {"top_p": 0.9})):
            check.measure(f"two steps with {what}", lambda t=training: check.steps("dapo", "float32", **t), 20)
            check.measure(f"the same training twice with {what}", lambda t=training: check.twice("float32", **t), 20)
        check.measure("memory", lambda: check.memory("bfloat16"), 20)
        tokens, width = (256, 32) if chosen.tiny else (1 << 18, 4096)
        check.measure("DelTA's weights at a large width", lambda: check.delta(tokens, width), 20)
        rows = 16 if chosen.tiny else 256
        check.measure("sampling beside generate", lambda: check.sampling("bfloat16", rows, chosen.tokens), 20)
        for how in (signal.SIGKILL, signal.SIGTERM):
            check.measure(f"ended by {how.name} and continued", lambda h=how: check.killed(h), 40)
        if chosen.run is not None:
            check.measure("your training", lambda: check.own_training(chosen.run), 60)
        check.line("done", failed=check.failed)
    raise SystemExit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
