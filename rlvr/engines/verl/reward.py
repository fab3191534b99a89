"""The grader that scores evaluation, as verl's reward: in processes that can be killed, with a limit on time.

verl's own scorers rely on ``signal.alarm``, which does nothing in a worker's thread (verl #5635, #5839).
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

import evals.grading.workers  # noqa: F401 (now, not at the first answer that needs algebra)
from evals.grading import Case, GradingPool

_POOL = GradingPool(workers=1)
_LOCK = threading.Lock()


class GradingRewardManager(RewardManagerBase):
    """1 for a correct answer, 0 otherwise; a response that was cut off at the length limit is graded as truncated."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_unused: Any) -> None:
        """One is built in each of verl's reward workers."""
        super().__init__(config, tokenizer, compute_score)
        self._longest = int(config.data.max_response_length)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """The reward of one response."""
        item = data[-1]
        responses = item.batch["responses"]
        length = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        tokens = responses[:length].tolist()
        gold = str(item.non_tensor_batch["reward_model"]["ground_truth"])
        loop = asyncio.get_running_loop()
        correct, truncated = await loop.run_in_executor(None, self._grade, tokens, gold)
        return {"reward_score": correct, "reward_extra_info": {"acc": correct, "truncated": truncated}}

    def _grade(self, tokens: list[int], gold: str) -> tuple[float, float]:
        truncated = len(tokens) >= self._longest and tokens[-1] != self.tokenizer.eos_token_id
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        with _LOCK:
            verdict = _POOL.grade([Case(prediction=text, gold=gold, truncated=truncated)])[0]
        return float(verdict.correct), float(truncated)
