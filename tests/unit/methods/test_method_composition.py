"""The catalogue, the declarations that it is checked against, and methods composed from it."""

from __future__ import annotations

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
from rlvr.methods.declarations import declarations
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import SAPO, Clipped
from rlvr.methods.method import Method, components, compose
from rlvr.methods.parameters import Component, parameters_of
from rlvr.methods.selections import RewardBalanced
from rlvr.methods.token_weights.delta import DelTA
from rlvr.methods.token_weights.token_rules import ForkingTokens
from rlvr.study.catalogue import load_catalogue, resolve_method

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE: dict[str, Any] = yaml.safe_load((ROOT / "config" / "methods.yaml").read_text())
TOKENS, RESPONSES = Aggregation("token-mean"), Aggregation("seq-mean-token-mean")
EXPECTED = {
    "grpo": Method(GRPO(), None, Clipped(epsilon_high=0.2, dual_clip=None), RESPONSES, RandomSplit(), None),
    "dapo": Method(GRPO(), None, Clipped(), TOKENS, RandomSplit(), None),
    "sapo": Method(GRPO(), None, SAPO(), RESPONSES, RandomSplit(), None),
    "gspo": Method(GRPO(), None, GSPO(), RESPONSES, RandomSplit(), None),
    "delta": Method(GRPO(), DelTA(), Clipped(), TOKENS, RandomSplit(), None),
    "dapo_forking_tokens": Method(GRPO(), ForkingTokens(), Clipped(), TOKENS, RandomSplit(), None),
    "dapo_query_preserved": Method(GRPO(), None, Clipped(), TOKENS, QueryPreserved(), None),
    "dapo_query_preserved_reward_balanced": Method(GRPO(), None, Clipped(), TOKENS, QueryPreserved(), RewardBalanced()),
}
DECLARED = [each for of_kind in declarations().values() for each in of_kind.values()]


def resolve(name: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """An entry of this catalogue with everything that it extends and every default filled in."""
    return resolve_method(name, overrides or {}, CATALOGUE, "study.yaml")


@pytest.mark.parametrize("name", EXPECTED)
def test_catalogue_composes_the_published_defaults(name: str) -> None:
    assert compose(resolve(name)) == EXPECTED[name]
    assert compose(resolve(name)).needs_hidden_states == (name == "delta")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_resolves_and_composes(name: str) -> None:
    compose(resolve(name))


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: f"{each.kind}-{each.name}")
def test_what_is_read_from_the_source_is_what_the_class_says(declared: Any) -> None:
    component = declared.load()
    of_method = {"aggregation", "aggregation_constant"} if declared.kind == "loss" else set()
    own = {name: each for name, each in declared.parameters.items() if name not in of_method}
    assert own == parameters_of(component) and own.keys() == vars(component()).keys()
    assert (component.kind, component.name) == (declared.kind, declared.name)
    if issubclass(component, PolicyLoss):
        assert declared.defaults["aggregation"] == component.default_aggregation


def test_every_named_class_is_declared() -> None:
    def below(base: type[Component]) -> set[type[Component]]:
        return {base, *(each for child in base.__subclasses__() for each in below(child))}

    loaded = {each for kind in declarations() for each in components(kind).values()}
    assert {each for each in below(Component) if "name" in vars(each)} == loaded


def test_declarations_and_the_catalogue_need_no_torch() -> None:
    program = "import sys, rlvr.study.catalogue as c; c.load_catalogue(); sys.exit('torch' in sys.modules)"
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
        (("loss", "aggregation"), "seq-mean-token-sum-norm", "loss", ""),
        (("advantage", "epsilon"), "1e-6", "advantage.epsilon", "number"),
        (("batching", "assignment", "name"), "sorted", "batching.assignment.name", "length_sorted, "),
    ],
)
def test_bad_values_are_named_alike_in_a_study_and_in_a_run(
    path: tuple[str, ...], value: Any, key: str, accepted: str
) -> None:
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
