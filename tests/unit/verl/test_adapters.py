"""Adapters by verl: the checkpoint that is made of them, and how much of them is left in bfloat16."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.core.training_settings import Lora
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.engines.verl.adapters import ADAPTERS, add_adapters, kept, reach, require_followed
from tests.unit.verl.conftest import make_run

SHAPES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPES |= {"num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32}
NAME = "model.layers.0.mlp.down_proj.weight"
LORA = Lora(rank=16, alpha=32.0)


def update(size: float, rows: int, columns: int) -> Tensor:
    """What adapters add whose A is as it was drawn, and whose B has numbers of one ``size``."""
    generator = torch.Generator().manual_seed(0)
    first = (2 * torch.rand(LORA.rank, columns, generator=generator) - 1) / columns**0.5
    return LORA.alpha / LORA.rank * size * torch.randn(rows, LORA.rank, generator=generator).sign() @ first


@pytest.mark.parametrize(("size", "left"), [(1e-5, 0.06), (1e-4, 0.51), (3e-4, 0.92), (3e-3, 1.0)])
def test_small_updates_vanish_in_bfloat16(size: float, left: float) -> None:
    weight = (0.02 * torch.randn(512, 512, generator=torch.Generator().manual_seed(1))).bfloat16()
    added = update(size, 512, 512)
    product, square = kept(weight, added)
    assert product / square == pytest.approx(left, abs=0.04)
    assert square == pytest.approx(float(added.double().square().sum()), rel=1e-6)


def test_adapters_are_added_to_the_base_model(tmp_path: Path) -> None:
    tokenizer, generator = build_tokenizer(), torch.Generator().manual_seed(5)
    initial_model({**SHAPES, "tie_word_embeddings": True}, tokenizer, seed=3).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    weights, lora = load_file(tmp_path / "base" / "model.safetensors"), Lora(rank=2, alpha=3.0)
    factors = {
        NAME.replace("weight", f"lora_{part}.weight"): torch.randn(shape, generator=generator)
        for part, shape in (("A", (2, 24)), ("B", (16, 2)))
    }
    save_file(factors, tmp_path / ADAPTERS)
    share = add_adapters(tmp_path / "base", tmp_path / ADAPTERS, lora, tmp_path / "checkpoint")
    first, second = factors.values()
    changed = {**weights, NAME: weights[NAME] + 1.5 * second @ first}
    found = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert found.keys() == changed.keys() and share == pytest.approx(1.0, abs=0.01)
    assert all(torch.equal(found[each], changed[each].to(torch.bfloat16)) for each in found)
    assert read_json(tmp_path / "checkpoint" / "config.json")["dtype"] == "bfloat16"
    assert (tmp_path / "checkpoint" / "tokenizer.json").is_file()
    save_file({"model.layers.7.mlp.up_proj.lora_A.weight": first}, tmp_path / ADAPTERS)
    with pytest.raises(UserError, match=r"layers\.7\.mlp\.up_proj\.lora_A\.weight: of no weight of"):
        add_adapters(tmp_path / "base", tmp_path / ADAPTERS, lora, tmp_path / "other")


def test_adam_moves_a_number_by_all_learning_rates_at_most() -> None:
    settings = {"steps": 10, "updates_per_step": 4, "learning_rate": 1e-5}
    assert reach(make_run(**settings).training) == pytest.approx(4e-4)
    # The first four of five updates have a fifth, two, three and four fifths of the rate.
    assert reach(make_run(**settings, warmup_updates=5).training) == pytest.approx(3.8e-4)


@pytest.mark.parametrize(("learning_rate", "fits"), [(1e-6, False), (1e-4, True)])
def test_a_training_that_bfloat16_cannot_follow_is_refused(learning_rate: float, fits: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = {
        f"model.layers.{n}.mlp.up_proj.weight": 0.02 * torch.randn(256, 256, generator=generator) for n in (0, 1)
    }
    save_file({name: each.bfloat16() for name, each in weights.items()}, tmp_path / "model.safetensors")
    run = make_run(steps=5, updates_per_step=2, learning_rate=learning_rate, lora=LORA.to_json())
    if fits:
        return require_followed(run, tmp_path)
    with pytest.raises(InvalidInput, match=r"at most\) that \d% of it is left in bfloat16.*: at least 50%") as error:
        require_followed(run, tmp_path)
    assert error.value.key == "training.lora" and "\n" not in str(error.value)
    return None
