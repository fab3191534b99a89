"""Packed sequences, which ranks share as they do on GPUs, give what padded ones give on one rank.

On GPUs verl removes padding, and with ``sequence_parallel`` gives every rank a part of each sequence and, within
attention, of the heads (Ulysses). Here it does the same over gloo, with attention by torch in place of flash-attn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.recorded_batches import compute_by_verl, flat, found_by_verl, write_model

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

METHODS = ("delta", "fipo")
"""Token weights by hidden states, and a loss that couples rollouts."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, int], dict[str, Any]]:
    """What so many ranks find for a method; 0 of them share a sequence where it is padded."""
    study = tmp_path_factory.mktemp("study")
    write_model(study)

    @cache
    def compute(ranks: int, shared: int) -> Path:
        directory = tmp_path_factory.mktemp(f"ranks-{ranks}-{shared}")
        compute_by_verl(directory, study, METHODS, ranks, shared)
        return directory

    return lambda name, ranks, shared: found_by_verl(compute(ranks, shared), name)


@pytest.mark.parametrize(("ranks", "shared"), [(1, 1), (2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("name", METHODS)
def test_packed_sequences_that_ranks_share_are_trained_on_alike(
    name: str,
    ranks: int,
    shared: int,
    found: Callable[[str, int, int], dict[str, Any]],
    report_measured: Callable[[str, str], None],
) -> None:
    padded, packed = found(name, 1, 0), found(name, ranks, shared)
    for kind in ("log_probs", "entropies", "weights"):
        torch.testing.assert_close(flat(packed[kind]), flat(padded[kind]), rtol=0, atol=1e-5)
    assert packed["grad_norms"] == pytest.approx(padded["grad_norms"], rel=1e-4)
    apart = max(float((packed["state"][each] - padded["state"][each]).abs().max()) for each in padded["state"])
    report_measured(f"packed, {name}, {ranks} rank(s), {shared} to a sequence", f"parameters apart by {apart:.1e}")
    assert apart < 1e-4  # two updates move them by 6e-4 and less
