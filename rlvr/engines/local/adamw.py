"""AdamW by torch's functional form: the class ``torch.optim.AdamW`` imports torch's compiler, for 1.5 s a process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from evals.core.errors import UserError

Made = TypeVar("Made")
_LARGEST_POWER = 16
"""The loss of a float16 pass is multiplied by 2 to this power first, or gradients below 6e-8 would vanish."""


def scaled_gradients(
    backward: Callable[[float], tuple[Made, Sequence[Tensor]]], dtype: torch.dtype
) -> tuple[Made, float]:
    """Compute gradients of a loss that ``backward`` multiplies by the scale it is given; then divide them by it.

    In float16 the scale is halved until no gradient is infinite (arXiv 1710.03740): no update is left out, and nothing
    of one is known to the next. In other types it is 1. ``backward`` returns something and the gradients.
    """
    for power in range(_LARGEST_POWER if dtype == torch.float16 else 0, -1, -1):
        made, gradients = backward(2.0**power)
        if power == 0 or all(bool(gradient.isfinite().all()) for gradient in gradients):
            break
    for gradient in gradients if power else ():
        gradient /= 2.0**power
    return made, 2.0**power


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
            "step": [torch.zeros((), device=weight.device) for weight in self._parameters],
            "exp_avg": [torch.zeros_like(weight) for weight in self._parameters],
            "exp_avg_sq": [torch.zeros_like(weight) for weight in self._parameters],
        }

    def add_gradients(self, backward: Callable[[float], Made], dtype: torch.dtype) -> tuple[Made, dict[str, float]]:
        """Compute the gradients of the parameters as :func:`scaled_gradients` does; returns the scale as a metric."""

        def anew(scale: float) -> tuple[Made, Sequence[Tensor]]:
            for weight in self._parameters:
                weight.grad = None
            return backward(scale), [weight.grad for weight in self._parameters if weight.grad is not None]

        made, scale = scaled_gradients(anew, dtype)
        return made, {"loss_scale": scale} if dtype == torch.float16 else {}

    def clip(self, largest: float, where: str) -> float:
        """Scale the gradients down to the norm ``largest``; returns what it was, and UserError if it is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, largest)
        if not torch.isfinite(norm):
            raise UserError(f"{where}: the gradient is not finite; the training has diverged")
        return float(norm)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change every parameter by its gradient; one without any, as of an expert that no token chose, stays."""
        used = [number for number, weight in enumerate(self._parameters) if weight.grad is not None]
        average, square, steps = (
            [self._state[name][number] for number in used] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            [self._parameters[number] for number in used],
            [weight.grad for weight in self._parameters if weight.grad is not None],
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
        return {
            "state": {number: {name: tensors[number] for name, tensors in self._state.items()} for number in numbers}
        }

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Go on with the state of :meth:`state_dict`."""
        for number, tensors in content["state"].items():
            for name, value in tensors.items():
                self._state[name][number].copy_(value)
