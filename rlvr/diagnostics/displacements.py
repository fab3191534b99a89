"""What probing updates would do to every token of a moment: the displacements that several claims look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from rlvr.diagnostics import VERSION
from rlvr.diagnostics.coupling import first_order_displacement
from rlvr.diagnostics.moment import Moment, read_moments
from rlvr.diagnostics.probes import Gradient, head_view, log_probs_of, norm, score_gradient, stepped
from rlvr.engines.local.policy import score_in_chunks

PROBES = ("null", "joint", "positive_only", "negative_only", "head_only", "first_order")
Mover = Callable[[Gradient, float], Tensor]
_OTHER_CHUNK = 17  # rollouts in one forward pass of the null update: other sums, the same mathematics
_TRIAL_LENGTH = 1e-3
"""Length of the trial step in parameter space: small enough to be nearly linear, far above float32's rounding."""


def write_displacements(directory: Path, steps: Sequence[int] | None) -> None:
    """Write ``probes.parquet`` and ``probes.manifest.json`` into the directory of a token table.

    A row a token in the order of the table, with its step and a column for each probe, in nats.

    Args:
        directory: of a token table.
        steps: of those kept, the ones to probe; None for all.

    Raises:
        UserError: a file is missing or changed, or a step was not kept.
    """
    table = verify_outputs(directory / "manifest.json", "token_table")
    frames = []
    for moment in read_moments(directory, steps):
        found, step_size = displacements(moment)
        columns = {name: values.numpy() for name, values in found.items()}
        frames.append(pd.DataFrame({"step": moment.step, "step_size": step_size, **columns}))
        print(f"{moment.unit}: probed", flush=True)
    write_parquet(directory / "probes.parquet", pd.concat(frames, ignore_index=True))
    parameters = {"steps": list(steps) if steps else None, "version": VERSION}
    Manifest(
        kind="probes",
        inputs={str(directory / name): digest for name, digest in table.outputs.items()},
        outputs=hash_files(directory, directory / "probes.parquet"),
        parameters=parameters,
        fingerprint=fingerprint({"parameters": parameters, "table": table.fingerprint}),
    ).write(directory / "probes.manifest.json")


def displacements(moment: Moment) -> tuple[dict[str, Tensor], float]:
    """Probe -> change [N] of the tokens' log-probabilities in nats, and the step size of plain SGD.

    ``null`` is a second forward pass without a step. ``joint`` is one step of SGD on all tokens, ``positive_only`` and
    ``negative_only`` on those of that side, all of one size: that at which the joint step moves tokens as far (root
    mean square) as the run's own updates did, if displacements grow in proportion. ``head_only`` is the joint step on
    the language-model head alone, ``first_order`` its linear part.
    """
    temperature = moment.run.training.temperature
    before = log_probs_of(moment.model, moment.tokens, temperature)
    again = score_in_chunks(moment.model, moment.tokens, temperature, _OTHER_CHUNK)[0].double()
    signal = moment.signal / len(before)
    joint = score_gradient(moment.model, moment.tokens, temperature, signal)
    positive = score_gradient(moment.model, moment.tokens, temperature, signal.clamp(min=0))
    negative = {name: joint[name] - positive[name] for name in joint}

    def moved(gradient: Gradient, step_size: float) -> Tensor:
        with stepped(moment.model, gradient, step_size) as after:
            return log_probs_of(after, moment.tokens, temperature) - before

    step_size = matched_step_size(moved, joint, moment.trained)
    view = head_view(moment)
    head = view.log_probs(view.weight + step_size * view.gradient(signal)) - view.log_probs()
    found: Mapping[str, Tensor] = {
        "null": again - before,
        "joint": moved(joint, step_size),
        "positive_only": moved(positive, step_size),
        "negative_only": moved(negative, step_size),
        "head_only": head,
        "first_order": first_order_displacement(view, signal, step_size),
    }
    return dict(found), step_size


def matched_step_size(moved: Mover, gradient: Gradient, wanted: Tensor) -> float:
    """The step size at which a step along ``gradient`` moves tokens as far as ``wanted`` [N], by root mean square.

    ``moved(gradient, step size)`` are displacements [N]. One trial step is made, and displacements are taken as
    proportional to the step. 0 for a gradient of 0.
    """
    length = norm(gradient)
    if length == 0:
        return 0.0
    trial = _TRIAL_LENGTH / length
    found = moved(gradient, trial)
    return trial * float(_root_mean_square(wanted) / _root_mean_square(found).clamp(min=1e-12))


def _root_mean_square(values: Tensor) -> Tensor:
    return torch.sqrt(values.square().mean())


@dataclass(frozen=True)
class Probed:
    """What probes found of a moment.

    Attributes:
        step_size: of their SGD.
        by: probe -> displacements [N] in nats; ``as_trained`` is the run's own update.
    """

    step_size: float
    by: Mapping[str, Tensor]


def read_displacements(directory: Path, moments: Sequence[Moment]) -> dict[str, Probed]:
    """Unit of each moment -> what probes found.

    Raises:
        UserError: a file is missing or changed, or a moment was not probed.
    """
    verify_outputs(directory / "probes.manifest.json", "probes")
    frame = pd.read_parquet(directory / "probes.parquet")
    found = {}
    for moment in moments:
        rows = frame[frame["step"] == moment.step]
        if len(rows) != len(moment.rows):
            raise UserError(
                f"{directory}: step {moment.step} was not probed; accepted: probe it, or name other --steps"
            )
        probes = {name: torch.tensor(rows[name].to_numpy(), dtype=torch.float64) for name in PROBES}
        found[moment.unit] = Probed(float(rows["step_size"].iloc[0]), {"as_trained": moment.trained, **probes})
    return found
