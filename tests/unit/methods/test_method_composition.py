"""The catalogue, the declarations that it is checked against, and methods composed from it."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.core.errors import InvalidInput
from rlvr.methods.advantages import GRPO
from rlvr.methods.aggregation import Aggregation
from rlvr.methods.assignments import QueryPreserved, RandomSplit
from rlvr.methods.components import components
from rlvr.methods.loss_terms import LossTerm
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import SAPO, Clipped
from rlvr.methods.method import Method, compose
from rlvr.methods.selections import RewardBalanced
from rlvr.methods.token_weights.delta import DelTA
from rlvr.methods.token_weights.token_rules import ForkingTokens
from rlvr.study.catalogue import load_catalogue, resolve_method

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE: dict[str, Any] = yaml.safe_load((ROOT / "config" / "methods.yaml").read_text())
TOKENS, RESPONSES = Aggregation("token-mean"), Aggregation("seq-mean-token-mean")
EXPECTED = {
    "grpo": Method(
        GRPO(), None, Clipped(epsilon_high=0.2, dual_clip=None), RESPONSES, RandomSplit(), None, kl=LossTerm()
    ),
    "grpo_no_kl": Method(GRPO(), None, Clipped(epsilon_high=0.2, dual_clip=None), RESPONSES, RandomSplit(), None),
    "dapo": Method(GRPO(), None, Clipped(), TOKENS, RandomSplit(), None),
    "sapo": Method(GRPO(), None, SAPO(), RESPONSES, RandomSplit(), None),
    "gspo": Method(GRPO(), None, GSPO(), RESPONSES, RandomSplit(), None),
    "delta": Method(GRPO(), DelTA(), Clipped(), TOKENS, RandomSplit(), None),
    "dapo_forking_tokens": Method(GRPO(), ForkingTokens(), Clipped(), TOKENS, RandomSplit(), None),
    "dapo_query_preserved": Method(GRPO(), None, Clipped(), TOKENS, QueryPreserved(), None),
    "dapo_query_preserved_reward_balanced": Method(GRPO(), None, Clipped(), TOKENS, QueryPreserved(), RewardBalanced()),
}


def resolve(name: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """An entry of this catalogue with everything that it extends and every default filled in."""
    return resolve_method(name, overrides or {}, CATALOGUE, "study.yaml")


@pytest.mark.parametrize("name", EXPECTED)
def test_catalogue_composes_the_published_defaults(name: str) -> None:
    assert compose(resolve(name)) == EXPECTED[name]
    assert compose(resolve(name)).needs_hidden_states == (name == "delta")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_resolves_and_composes(name: str) -> None:
    compose(resolve(name), longest=64)


def test_a_sum_over_tokens_is_divided_by_the_trainings_longest_response() -> None:
    """Dr. GRPO's constant; a number of the entry's own goes before it."""
    assert compose(resolve("dr_grpo"), longest=128).aggregation == Aggregation("seq-mean-token-sum-norm", 128.0)
    own = resolve("dr_grpo", {"loss": {"aggregation_constant": 9.0}})
    assert compose(own, longest=128).aggregation == Aggregation("seq-mean-token-sum-norm", 9.0)
    with pytest.raises(InvalidInput) as error:
        compose(resolve("dr_grpo"))
    assert error.value.key == "loss.aggregation_constant"


@pytest.mark.parametrize("name", ["random_rewards", "flipped_rewards", "majority_vote"])
def test_nothing_replaces_rewards_that_a_divergence_was_taken_from(name: str) -> None:
    kl = {"name": "reward_term", "coefficient": 0.001, "estimator": "k1"}
    with pytest.raises(InvalidInput, match=f"is {name}, which replaces the rewards") as error:
        compose(resolve("dapo", {"reward_shaping": {"name": name}, "kl": kl}), longest=64)
    assert error.value.key == "reward_shaping"
    compose(resolve("dapo", {"reward_shaping": {"name": "overlong"}, "kl": kl}), longest=64)


def test_every_component_says_what_it_computes_and_what_its_parameters_are() -> None:
    for kind, of_kind in components().items():
        for name, declared in of_kind.items():
            assert (declared.kind, declared.name) == (kind, name) and declared.__doc__
            own = vars(declared())
            for parameter, what in declared.parameters().items():
                assert what.description and own.get(parameter, what.default) == what.default


def test_components_and_the_catalogue_are_read_without_torch_which_the_first_computation_loads() -> None:
    program = """
import sys
from rlvr.study.catalogue import load_catalogue
load_catalogue()
before = "torch" in sys.modules
from evals.core.lazy_torch import torch
torch.ones(1)
sys.exit(before or "torch" not in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("path", "value", "key", "accepted"),
    [
        (("token_weights", "lambda_max"), 0.5, "token_weights.lambda_max", "at least 1"),
        (("token_weights", "lamda_max"), 1.5, "token_weights", "lambda_max"),
        (("token_weights", "refinements"), 1.5, "token_weights.refinements", "whole number"),
        (("token_weights",), 3, "token_weights", "mapping"),
        (("loss", "name"), "cliped", "loss.name", "cispo, clip_cov, clipped"),
        (("loss", "aggregation"), "mean", "loss.aggregation", "token-mean, seq-mean-token-mean"),
        (("loss", "dual_clip"), 1.0, "loss.dual_clip", "above 1"),
        (("loss", "dual_clip"), True, "loss.dual_clip", "number"),
        (("loss", "dual_clip"), float("nan"), "loss.dual_clip", "number"),
        (("loss", "aggregation_constant"), 9.0, "loss", ""),
        (("advantage", "epsilon"), "1e-6", "advantage.epsilon", "number"),
        (("batching", "assignment", "name"), "sorted", "batching.assignment.name", "length_sorted, "),
    ],
)
def test_bad_values_are_named_everywhere(path: tuple[str, ...], value: Any, key: str, accepted: str) -> None:
    override: Any = value
    for part in reversed(path):
        override = {part: override}
    with pytest.raises(InvalidInput) as of_study:
        resolve("delta", override)
    resolved = resolve("delta")
    holder = resolved
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    with pytest.raises(InvalidInput) as of_run:
        compose(resolved)
    for error in (of_study.value, of_run.value):
        assert error.key == key and accepted in error.accepted
        assert "\n" not in str(error) and "accepted" in str(error)


def test_a_component_checks_its_own_values() -> None:
    with pytest.raises(InvalidInput) as error:
        Clipped(dual_clip=1.0)
    assert (error.value.key, error.value.accepted) == ("dual_clip", "above 1")


@pytest.mark.parametrize(
    ("override", "accepted"),
    [
        ({"token_weights": {"lambda_max": 1.5}}, True),
        ({"extends": "dapo", "loss": {"name": "clipped", "dual_clip": None}}, True),
        ({"token_weights": None, "batching": {"selection": None}}, True),
        ({"batching": {"selection": {"name": "reward_balanced"}}}, True),
        ({"loss": {"epsilon": 0.1}}, False),
        ({"loss": {"name": "sapo", "epsilon_low": 0.1}}, False),
        ({"losses": {}}, False),
        ({"batching": {"order": "x"}}, False),
        ({"batching": None}, False),
        ({"extends": ["dapo"]}, False),
        ({"paper": "2503"}, False),
    ],
)
def test_overrides_may_be_partial_but_not_unknown(override: dict[str, Any], accepted: bool) -> None:
    if accepted:
        compose(resolve("delta", override))
        return
    with pytest.raises(InvalidInput) as error:
        resolve("delta", override)
    assert error.value.source == "study.yaml"


@pytest.mark.parametrize(
    ("change", "key"), [({"version": 0}, "version"), ({"title": ""}, "title"), ({"loss": {"x": 1}}, "loss")]
)
def test_a_faulty_entry_is_found_though_no_study_uses_it(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    entries = deepcopy(CATALOGUE)
    entries["sapo"] |= change
    path = tmp_path / "methods.yaml"
    path.write_text(yaml.safe_dump(entries))
    with pytest.raises(InvalidInput) as error:
        load_catalogue(path)
    assert (error.value.source, error.value.key) == (f"{path}: sapo", key)


def test_a_missing_component_is_named() -> None:
    with pytest.raises(InvalidInput) as error:
        compose({"advantage": {"name": "grpo"}, "batching": {"assignment": {"name": "random_split"}}})
    assert error.value.found == "lacks loss"
