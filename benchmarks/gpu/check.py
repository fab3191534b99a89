"""The first facts about a GPU in fifteen minutes of a card: does the local engine run, agree, repeat itself and fit.

    make gpu-check                                           # or: python benchmarks/gpu/check.py --out results.jsonl
    make gpu-check ARGS="--run results/runs/RUN/run.json"    # and steps of a training of your own
    python benchmarks/gpu/check.py --device cpu --tiny       # the smallest sizes, to try the script

Nothing is downloaded: models have random weights and the shapes of --hidden, --layers and --vocabulary, by default
those of SmolLM2-135M, problems are made up, and every other response is taken for right. Each measurement is a line of
JSON. One that fails is a line with its error, and the next one is made; one that no longer fits into --budget seconds
is a line that says so. `ok` is false where a number is outside its limit (--apart, --share).
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from evals.core.files import write_json, write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation.architecture import DecoderConfig
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.grading import GradingPool
from evals.grading.verdict import Reason, Verdict
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.engines.local.clock import peak_memory, time_on
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.memory import largest_passes
from rlvr.engines.local.memory_sum import products
from rlvr.engines.local.policy import TokenBatch, load_policy, token_log_probs
from rlvr.methods.components import composition
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA
from rlvr.study.catalogue import load_catalogue, resolve_method

METHODS = ("dapo", "delta", "gspo", "fipo", "clip_cov", "delta_top_k_hidden_gradient_proxy")
_PARTS = ("version", *composition().model_fields)


class Alternating:
    """Finds every other response right, so that random weights have something to learn from."""

    def grade(self, cases: Any) -> list[Verdict]:
        """Give a verdict on each of ``cases``."""
        reasons = (Reason.MATCH if number % 2 else Reason.MISMATCH for number in range(len(cases)))
        return [Verdict.of("1", reason, 0.0) for reason in reasons]


class Check:
    """The measurements of one card."""

    def __init__(self, chosen: argparse.Namespace, work: Path) -> None:
        self.chosen, self.work, self.started, self.failed = chosen, work, time.monotonic(), 0
        self.device = torch.device(chosen.device)
        self.base, self.problems = self._model(), work / "problems"
        write_jsonl(
            self.problems / "problems.jsonl",
            [{"id": str(n), "problem": f"Compute {n}+{n % 7}.", "answer": str(n + n % 7)} for n in range(256)],
        )

    def _model(self) -> Path:
        chosen, base, tokenizer = self.chosen, self.work / "base", build_tokenizer()
        heads = chosen.hidden // 64 if chosen.hidden % 64 == 0 else 4
        content = {
            **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": chosen.hidden},
            **{"intermediate_size": 8 * chosen.hidden // 3, "num_hidden_layers": chosen.layers},
            **{"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": chosen.hidden // heads},
            **{"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0},
            **{"tie_word_embeddings": True, "vocab_size": max(chosen.vocabulary, len(tokenizer))},
            **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id},
        }
        write_json(base / "checkpoint" / "config.json", content)
        tokenizer.save_pretrained(base / "checkpoint")
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(1)
        shapes = DecoderConfig.from_json(content, "config.json").shapes
        weights = {
            name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
            for name, shape in shapes.items()
        }
        save_file(weights, base / "checkpoint" / "model.safetensors", {"format": "pt"})
        return base

    def run(self, method: str, dtype: str, **training: Any) -> LocalRun:
        """Resolve a run of the random model."""
        entry = resolve_method(method, {}, load_catalogue(), method)
        chosen = self.chosen
        settings = {
            **{"steps": 2, "prompts_per_step": chosen.prompts, "samples_per_prompt": 8, "updates_per_step": 2},
            **{"micro_batch_size": 64, "micro_batch_tokens": 16384, "max_new_tokens": chosen.tokens},
            **{"temperature": 1.0, "sampling_batch_size": 256, "learning_rate": 2e-5, "warmup_updates": 2},
            **{"weight_decay": 0.0, "gradient_clip": 1.0, **training},
        }
        content = {
            **{"run": f"gpu-check-{method}", "model": "random", "base": str(self.base), "seed": 1},
            **{"problems": str(self.problems), "prompt": "{problem}\n", "method_name": method},
            **{"method": {key: entry[key] for key in _PARTS if key in entry}, "training": settings, "dtype": dtype},
        }
        return LocalRun.parse(content, "gpu-check")

    def line(self, what: str, **values: Any) -> None:
        """Print a line, and add it to the file of results."""
        text = json.dumps({"what": what, "at": round(time.monotonic() - self.started, 1), **values}, default=str)
        print(text, flush=True)
        with self.chosen.out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def measure(self, what: str, function: Callable[[], Mapping[str, Any]], needs: float) -> None:
        """Make a measurement, unless fewer seconds are left of the budget than it ``needs``."""
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
            where = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
            self.line(what, ok=False, error=f"{type(error).__name__}: {error}"[:500], where=where[-6:])
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def environment(self) -> dict[str, Any]:
        """Name versions and card, and measure a large product and a large copy."""
        size = 256 if self.chosen.tiny else 8192
        matrix = torch.randn(size, size, device=self.device, dtype=torch.bfloat16)
        product, copy = (self.time(each) for each in (lambda: matrix @ matrix, lambda: matrix.clone()))
        card = torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor()
        rates = {"bfloat16_tflops": 2 * size**3 / product / 1e12, "copied_gb_per_second": 4 * size**2 / copy / 1e9}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
        return {"card": card, **versions, **{name: round(rate, 1) for name, rate in rates.items()}}

    def time(self, function: Callable[[], object], times: int = 3) -> float:
        """Return the shortest time in seconds of a few calls, after one that is not counted."""
        function()
        found = []
        for _ in range(times):
            started = time_on(self.device)
            function()
            found.append(time_on(self.device) - started)
        return min(found)

    def steps(self, method: str, dtype: str, **training: Any) -> dict[str, Any]:
        """Take two steps of a method; the numbers are the second one's."""
        learner = Learner(self.run(method, dtype, **training), self.chosen.device)
        rows = [learner.step(Alternating()) for _ in range(2)]  # type: ignore[arg-type]
        seconds = {name: round(value, 3) for name, value in rows[1].items() if name.startswith("seconds")}
        rate = rows[1]["tokens_generated"] / rows[1]["seconds_step"]
        sizes = {"tokens_per_second": round(rate), "peak_mib": peak_memory(self.device) >> 20}
        return {
            **sizes,
            **seconds,
            "losses": [row["loss"] for row in rows],
            "ok": all(r["grad_norm"] > 0 for r in rows),
        }

    def against_cpu(self, dtype: str) -> dict[str, Any]:
        """Compare log-probabilities and the gradient with those of the CPU in float32."""
        batch = TokenBatch([[5, 6, 7], [8, 9]] * 8, [list(range(3, 3 + self.chosen.tokens))] * 16)
        found = []
        for device, kind in (("cpu", "float32"), (self.chosen.device, dtype)):
            policy = load_policy(Checkpoint(self.base / "checkpoint"), device, kind)
            log_probs = token_log_probs(policy, batch, 1.0)
            log_probs.mean().backward()  # type: ignore[no-untyped-call]
            gradient = torch.cat([each.grad.flatten().cpu() for each in policy.parameters() if each.grad is not None])
            found.append((log_probs.detach().cpu(), gradient))
        (first, slope), (second, other) = found
        apart = float((first - second).abs().max())
        cosine = float(torch.nn.functional.cosine_similarity(slope, other, dim=0))
        limit = self.chosen.apart * (1 if dtype == "float32" else 100)
        return {"log_probs_apart": apart, "gradients_cosine": cosine, "ok": apart < limit and cosine > 0.99}

    def twice(self, dtype: str, **training: Any) -> dict[str, Any]:
        """Take the same two steps twice: whether they have the same bits is a fact, and no fault."""
        weights = []
        for _ in range(2):
            learner = Learner(self.run("delta", dtype, **training), self.chosen.device)
            for _ in range(2):
                learner.step(Alternating())  # type: ignore[arg-type]
            weights.append([each.detach().cpu() for each in learner.model.parameters()])
        apart = max(float((one - two).abs().max()) for one, two in zip(*weights, strict=True))
        return {"same_bytes": apart == 0, "weights_apart": apart}

    def memory(self, dtype: str) -> dict[str, Any]:
        """Hold the sum of five products against what the largest passes take."""
        run = self.run("delta", dtype)
        learner = Learner(run, self.chosen.device)
        for make in largest_passes(learner).values():
            make()
        expected = sum(products(run, Execution(device=self.chosen.device)).values())
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
        learner, rewards = Learner(run, self.chosen.device), []
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
    parser.add_argument("--apart", type=float, default=1e-3, help="largest difference of log-probabilities, float32")
    parser.add_argument("--share", type=float, default=0.03, help="largest part of a step for DelTA's weights")
    sizes = (("hidden", 576, 32), ("layers", 30, 2), ("vocabulary", 49152, 64), ("prompts", 32, 4), ("tokens", 64, 4))
    for name, usual, _ in sizes:
        parser.add_argument(f"--{name}", type=int, help=f"default: {usual}")
    parser.add_argument("--tiny", action="store_true", help="sizes that a CPU does in seconds")
    parser.add_argument("--run", type=Path, help="run.json of a training of your own")
    parser.add_argument("--steps", type=int, default=60, help="steps of --run")
    chosen = parser.parse_args()
    for name, usual, small in sizes:
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
        for what, training in (("shared prompts", {"share_prompts": True}), ("top-p", {"top_p": 0.9})):
            check.measure(f"two steps with {what}", lambda t=training: check.steps("dapo", "float32", **t), 20)
            check.measure(f"the same training twice with {what}", lambda t=training: check.twice("float32", **t), 40)
        check.measure("memory", lambda: check.memory("bfloat16"), 20)
        tokens, width = (256, 32) if chosen.tiny else (1 << 18, 4096)
        check.measure("DelTA's weights at a large width", lambda: check.delta(tokens, width), 20)
        if chosen.run is not None:
            check.measure("your training", lambda: check.own_training(chosen.run), 60)
        check.line("done", failed=check.failed)
    raise SystemExit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
