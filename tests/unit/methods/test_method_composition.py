"""The catalogue, its schema, and methods composed from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rlvr.methods.advantages.grpo import GRPO
from rlvr.methods.batching.query_preserved import QueryPreserved
from rlvr.methods.batching.random_split import RandomSplit
from rlvr.methods.batching.reward_balanced import RewardBalanced
from rlvr.methods.hyper_parameter import property_schemas
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.gspo import GSPO
from rlvr.methods.losses.sapo import SAPO
from rlvr.methods.method import Method, compose
from rlvr.methods.schema import catalogue_schema, main
from rlvr.methods.token_weights.delta import DelTA
from rlvr.methods.token_weights.forking_tokens import ForkingTokens
from rlvr.study.catalogue import resolve_method

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE: dict[str, Any] = yaml.safe_load((ROOT / "config" / "methods.yaml").read_text())
DAPO = Method(GRPO(), None, Clipped(), RandomSplit(), None)
EXPECTED = {
    "grpo": Method(
        GRPO(), None, Clipped(epsilon_high=0.2, dual_clip=None, aggregation="seq-mean-token-mean"), RandomSplit(), None
    ),
    "dapo": DAPO,
    "sapo": Method(GRPO(), None, SAPO(), RandomSplit(), None),
    "gspo": Method(GRPO(), None, GSPO(), RandomSplit(), None),
    "delta": Method(GRPO(), DelTA(), Clipped(), RandomSplit(), None),
    "dapo_forking_tokens": Method(GRPO(), ForkingTokens(), Clipped(), RandomSplit(), None),
    "dapo_query_preserved": Method(GRPO(), None, Clipped(), QueryPreserved(), None),
    "dapo_query_preserved_reward_balanced": Method(GRPO(), None, Clipped(), QueryPreserved(), RewardBalanced()),
}


def resolve(name: str) -> dict[str, Any]:
    """An entry of this catalogue with everything that it extends and every default filled in."""
    return resolve_method(name, {}, CATALOGUE, "catalogue")


def errors(definition: str, instance: object) -> list[str]:
    """Validation messages of ``instance`` against a definition of the schema."""
    schema = {**catalogue_schema(), **{"$ref": f"#/$defs/{definition}"}}
    for key in ("type", "propertyNames", "additionalProperties"):
        del schema[key]
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(instance)]


@pytest.mark.parametrize("name", EXPECTED)
def test_catalogue_composes_the_published_defaults(name: str) -> None:
    resolved = resolve(name)
    assert errors("resolved_entry", resolved) == []
    assert compose(resolved) == EXPECTED[name]
    assert compose(resolved).needs_hidden_states == (name == "delta")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_resolves_and_composes(name: str) -> None:
    compose(resolve_method(name, {}, CATALOGUE, "catalogue"))


def test_catalogue_fits_its_schema() -> None:
    assert list(jsonschema.Draft202012Validator(catalogue_schema()).iter_errors(CATALOGUE)) == []


def test_schema_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Mend with: python -m rlvr.methods.schema > workflow/schemas/methods.schema.json"""
    main()
    printed = capsys.readouterr().out
    assert (ROOT / "workflow" / "schemas" / "methods.schema.json").read_text() == printed
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("token_weights", "lambda_max"), 0.5, "0.5 is less than the minimum of 1"),
        (("token_weights", "lamda_max"), 1.5, "'lamda_max' was unexpected"),
        (("token_weights", "refinements"), 1.5, "1.5 is not of type 'integer'"),
        (("token_weights",), 3, "3 is not of type 'object'"),
        (("loss", "name"), "cliped", "'cliped' is not one of ['cispo', 'clip_cov', 'clipped',"),
        (("loss", "aggregation"), "mean", "'mean' is not one of ["),
        (("loss", "dual_clip"), 1.0, "1.0 is less than or equal to the minimum of 1"),
        (("loss", "dual_clip"), True, "True is not of type 'number', 'null'"),
        (("loss", "aggregation_constant"), 9.0, "9.0 is not of type 'null'"),
        (("loss", "aggregation"), "seq-mean-token-sum-norm", "None is not of type 'number'"),
        (("advantage", "epsilon"), "1e-6", "'1e-6' is not of type 'number'"),
        (
            ("batching", "assignment", "name"),
            None,
            "None is not one of ['length_sorted', ",
        ),
        (("batching", "selection"), {"name": "reward_balanced"}, "'alpha' is a required property"),
    ],
)
def test_bad_values_are_named_by_schema_and_refused_by_compose(path: tuple[str, ...], value: Any, message: str) -> None:
    resolved = resolve("delta")
    holder = resolved
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    found = errors("resolved_entry", resolved)
    assert any(message in error for error in found), found
    if message.startswith("3 is") or "required" in message:
        return
    with pytest.raises(ValueError, match=path[-1]) as caught:
        compose(resolved)
    assert "\n" not in str(caught.value) and "accepted" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "accepted"),
    [
        ({"token_weights": {"lambda_max": 1.5}}, True),
        ({"extends": "dapo", "loss": {"name": "clipped", "dual_clip": None}}, True),
        ({"token_weights": None, "batching": {"selection": None}}, True),
        ({"loss": {"epsilon": 0.1}}, False),
        ({"loss": {"name": "sapo", "epsilon_low": 0.1}}, False),
        ({"losses": {}}, False),
        ({"batching": {"order": "x"}}, False),
    ],
)
def test_overrides_may_be_partial_but_not_unknown(override: dict[str, Any], accepted: bool) -> None:
    assert (errors("entry", override) == []) == accepted


def test_every_default_satisfies_its_own_range() -> None:
    """Constructing checks; a piece whose default were out of range could not be constructed at all."""
    for piece in (GRPO, DelTA, ForkingTokens, Clipped, SAPO, GSPO, RandomSplit, QueryPreserved, RewardBalanced):
        assert property_schemas(piece).keys() == vars(piece()).keys()


def test_a_missing_piece_is_named() -> None:
    with pytest.raises(ValueError, match=r"loss\.name is None; accepted: cispo, clip_cov, clipped, .*sapo"):
        compose({"advantage": {"name": "grpo"}})
