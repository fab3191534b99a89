"""Shares of the gradient by probability, by hand and against autograd."""

import dataclasses

import pytest
import torch
from test_coupling import head_gradients, random_view

from rlvr_claims.claims.gradient_mass import by_bin, head_norms, shares
from rlvr_claims.policy import PolicySnapshot


def test_head_norms_are_those_of_autograds_gradients() -> None:
    view = random_view()
    torch.testing.assert_close(head_norms(view), head_gradients(view).norm(dim=1))


def test_bins_by_hand() -> None:
    probability, mass = torch.tensor([0.05, 0.1, 0.55, 1.0]).double(), torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    assert by_bin(probability, mass).tolist() == [1, 2, 0, 0, 0, 3, 0, 0, 0, 4]


def test_shares_by_hand(snapshots: list[PolicySnapshot]) -> None:
    """Two tokens have advantage 1 and p = 1/4, -1 and p = 3/4; the others have none: masses 3/4 and 1/4."""
    snapshot = snapshots[0]
    rows = snapshot.rows.assign(advantage=0.0, side=0, weight=1.0)
    rows.loc[[0, 1], "advantage"], rows.loc[[0, 1], "side"] = [1.0, -1.0], [1, -1]
    rows.loc[[0, 1], "old_log_prob"] = torch.tensor([0.25, 0.75]).log().tolist()
    found = {(name, place): value for name, place, value in shares(dataclasses.replace(snapshot, rows=rows))}
    assert found["logits", 0.25] == pytest.approx(0.75, abs=1e-6)
    assert found["logits", 0.75] == found["logits punished", 0.75] == pytest.approx(0.25, abs=1e-6)
    assert found["logits rewarded", 0.75] == 0
    assert found["tokens", 0.25] == found["unlikely, tokens", 0.5] == 0.5
    assert found["unlikely, logits", 0.5] == pytest.approx(0.75, abs=1e-6)
    assert list(shares(dataclasses.replace(snapshot, rows=rows.assign(advantage=0.0)))) == []
