"""AdamW by torch's functional form: the class ``torch.optim.AdamW`` imports torch's compiler, for 1.5 s a process."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class AdamW:
    """AdamW (arXiv 1711.05101), one kernel a parameter; the rate is given to each step. The defaults are torch's."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._parameters, self._weight_decay = list(parameters), weight_decay
        self._betas, self._epsilon = betas, epsilon
        self._state = {
            "step": [torch.zeros((), device=each.device) for each in self._parameters],
            "exp_avg": [torch.zeros_like(each) for each in self._parameters],
            "exp_avg_sq": [torch.zeros_like(each) for each in self._parameters],
        }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change every parameter by its gradient; one without any, as of an expert that no token chose, stays."""
        used = [number for number, each in enumerate(self._parameters) if each.grad is not None]
        average, square, steps = (
            [self._state[name][number] for number in used] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            [self._parameters[number] for number in used],
            [each.grad for each in self._parameters if each.grad is not None],
            average,
            square,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """``{"state": {number of the parameter: {name: tensor}}}``, as of torch's optimizers."""
        numbers = range(len(self._parameters))
        return {"state": {number: {name: each[number] for name, each in self._state.items()} for number in numbers}}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Go on with the state of :meth:`state_dict`."""
        for number, tensors in content["state"].items():
            for name, value in tensors.items():
                self._state[name][number].copy_(value)
