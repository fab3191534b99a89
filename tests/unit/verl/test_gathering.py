"""What a rank sees of the whole batch, and what it takes back; without verl and without other processes."""

import torch

from rlvr.engines.verl.gathering import AllRollouts, Ranks
from rlvr.engines.verl.registered import nested


def test_values_of_all_ranks_stand_in_the_ranks_order_and_own_rows_come_back() -> None:
    first = {"lengths": torch.tensor([2, 1]), "mask": torch.ones(3).bool(), "values": torch.tensor([1.0, 2.0, 3.0])}
    second = {"lengths": torch.tensor([3]), "mask": torch.ones(3).bool(), "values": torch.tensor([4.0, 5.0, 6.0])}
    rollouts = AllRollouts([first, second], 1)
    padded = rollouts.padded("values")
    assert padded.tolist() == [[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [4.0, 5.0, 6.0]]
    assert rollouts.mask.sum(dim=1).tolist() == [2, 1, 3]
    assert [row.tolist() for row in rollouts.own(padded).unbind()] == [[4.0, 5.0, 6.0]]
    assert [row.tolist() for row in AllRollouts([first, second], 0).own(padded).unbind()] == [[1.0, 2.0], [3.0]]


def test_a_rank_alone_needs_no_other() -> None:
    alone = Ranks(None, 0, 1, torch.device("cpu"))
    found = alone.gather(nested([torch.ones(2), torch.ones(3)]), rewards=torch.tensor([1.0, 0.0]))
    assert found.joined("lengths").tolist() == [2, 3] and found.joined("rewards").tolist() == [1.0, 0.0]
    assert alone.share([5]) is None
    left_out = alone.gather(nested([torch.zeros(2), torch.ones(3)]), values=torch.arange(5.0))
    assert left_out.mask.tolist() == [[False] * 3, [True] * 3]
    assert [row.tolist() for row in left_out.own(left_out.padded("values")).unbind()] == [[0.0, 1.0], [2.0, 3.0, 4.0]]
    share = Ranks(None, 1, 2, torch.device("cpu")).share([5, 7])
    assert share is not None and (share.start, share.stop) == (5, 12)
