"""Components in files of the user's: found, checked and named in errors as those of the package are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput, NotAccepted
from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.component_file import components_in
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import compose
from rlvr.study.catalogue import entry_of_run, load_catalogue, resolve_method
from rlvr.study.method_pages import show_file

LOSS = """from rlvr.methods.losses.base import PolicyLoss, TokenLoss
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.advantages import Advantage
from rlvr.methods.aggregation import TokenShares
from rlvr.methods.parameters import component, hyper_parameter

HALF = 1 / 2

@component("mine")
class Mine(Clipped):
    \"\"\"beta times the clipped loss.\"\"\"

    beta: float = hyper_parameter(HALF, "not a literal", above=0.0)

    def token_loss(self, tokens):
        loss = super().token_loss(tokens)
        return TokenLoss(self.beta * loss.values, loss.metrics)

@component("centred")
class Centred(Advantage):
    \"\"\"A = R - mean.\"\"\"

    def of(self, groups):
        return groups.centred

@component("by_length")
class ByLength(TokenShares):
    \"\"\"A response of n tokens weighs n to the power.\"\"\"

    power: float = hyper_parameter(0.5, "0: the mean over responses, 1: over tokens", minimum=0.0, maximum=1.0)

    def shares(self, response_mask, normaliser, group_ids):
        total = sum(length ** self.power for length in normaliser.lengths if length)
        return response_mask.sum(dim=1, keepdim=True).double() ** (self.power - 1) / total
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loss.py"
    path.write_text(LOSS)
    return path


def resolve(overrides: dict[str, Any]) -> dict[str, Any]:
    return resolve_method("mine", {"extends": "dapo", **overrides}, load_catalogue(), "study.yaml: methods.mine")


def test_a_component_of_any_kind_may_lie_in_a_file(file: Path) -> None:
    part = {"file": str(file), "name": "mine", "beta": 2.0}
    method = compose(resolve({"loss": part, "advantage": {"file": str(file), "name": "centred"}}))
    assert (type(method.loss).__name__, type(method.advantage).__name__) == ("Mine", "Centred")
    new, old, advantages = (torch.randn(2, 3, dtype=torch.float64) for _ in range(3))
    mask, groups = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    doubled, built_in = (
        loss(new, old, advantages, mask, groups, torch.Generator(), method.aggregation)[0]
        for loss in (method.loss, Clipped())
    )
    torch.testing.assert_close(doubled, 2.0 * built_in)


KEPT = [[1, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]]
WHOLE_RESPONSES = [[1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1]]  # a mean over responses keeps the lengths of the rest


@pytest.mark.parametrize(
    ("power", "mode", "kept_places"), [(1.0, "token-mean", KEPT), (0.0, "seq-mean-token-mean", WHOLE_RESPONSES)]
)
def test_an_aggregation_in_a_file_divides(file: Path, power: float, mode: Mode, kept_places: list[list[int]]) -> None:
    part = {"file": str(file), "name": "by_length", "power": power}
    by_file, built_in = compose(resolve({"loss": {"aggregation": part}})).aggregation, Aggregation(mode)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]).bool()
    losses = torch.randn(4, 3, dtype=torch.float64).masked_fill(~mask, torch.nan)
    groups, normaliser = torch.tensor([0, 0, 1, 1]), Normaliser.of(mask)
    parts = [by_file(losses[rows], mask[rows], normaliser, groups[rows]) for rows in ([0, 2], [1, 3])]
    torch.testing.assert_close(sum(parts), built_in(losses, mask, normaliser))
    kept = mask & torch.tensor(kept_places).bool()
    dropped = [
        each(losses.masked_fill(~kept, 0.0) * each.correction(mask, kept, groups), mask, normaliser, groups)
        for each in (by_file, built_in)
    ]
    torch.testing.assert_close(*dropped)


def test_shares_of_another_shape_are_refused_and_not_broadcast(file: Path) -> None:
    file.write_text(LOSS.replace(", keepdim=True", ""))
    aggregation = compose(resolve({"loss": {"aggregation": {"file": str(file), "name": "by_length"}}})).aggregation
    mask = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"by_length: shares have shape \[3\], not \[3, 3\] or \[3, 1\]"):
        aggregation(torch.zeros(3, 3), mask, Normaliser.of(mask), torch.zeros(3))


def test_the_identity_names_the_copy_by_its_bytes_and_leaves_defaults_out(file: Path) -> None:
    entry = resolve({"loss": {"file": str(file), "name": "mine"}})
    loss = entry_of_run(entry)["loss"]
    assert set(loss) == {"file", "name"} and loss["file"].startswith("results/components/")
    file.write_text(LOSS + "\n")
    assert entry_of_run(entry)["loss"]["file"] != loss["file"]
    moved = file.with_name("elsewhere.py")
    moved.write_text(LOSS)
    assert entry_of_run(resolve({"loss": {"file": str(moved), "name": "mine"}}))["loss"] == loss
    part = {"file": str(moved), "name": "by_length", "power": 0.5}
    aggregation = entry_of_run(resolve({"loss": {"aggregation": part}}))["loss"]["aggregation"]
    assert aggregation == {"file": loss["file"], "name": "by_length"}


def test_a_changed_file_is_imported_anew(file: Path) -> None:
    part = {"loss": {"file": str(file), "name": "mine"}}
    assert compose(resolve(part)).loss.beta == 0.5  # type: ignore[attr-defined]
    file.write_text(LOSS.replace("1 / 2", "1 / 4"))
    assert compose(resolve(part)).loss.beta == 0.25  # type: ignore[attr-defined]


def test_an_entry_that_extends_one_with_a_file_changes_single_options(file: Path) -> None:
    catalogue = {**load_catalogue(), "parent": resolve({"loss": {"file": str(file), "name": "mine"}}) | {"version": 1}}
    entry = resolve_method("child", {"extends": "parent", "loss": {"beta": 3.0}}, catalogue, "study.yaml")
    assert (entry["loss"]["file"], entry["loss"]["beta"]) == (str(file), 3.0)
    other = resolve_method("other", {"extends": "parent", "loss": {"name": "sapo"}}, catalogue, "study.yaml")
    assert "file" not in other["loss"]


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"beta": 0.0}, "loss.beta", "is 0.0; accepted: above 0"),
        (
            {"gamma": 1.0},
            "loss",
            "unknown key gamma; accepted: aggregation, aggregation_constant, name, file, epsilon_low",
        ),
        ({"aggregation": "mean"}, "loss.aggregation", "is 'mean'"),
        ({"aggregation": {"power": 2.0}}, "loss.aggregation.power", "is 2.0; accepted: at most 1"),
        ({"aggregation": {"name": "mine"}}, "loss.aggregation.name", "has no aggregation of that name; accepted: by_l"),
        ({"aggregation_constant": 8.0, "aggregation": {}}, "loss", "aggregation_constant is 8.0 with by_length"),
        ({"name": "other"}, "loss.name", "has no loss of that name; accepted: mine"),
        ({"name": "centred"}, "loss.name", "has no loss of that name; accepted: mine"),
        ({"name": None}, "loss", "lacks name"),
        ({"file": "/nowhere/loss.py"}, "loss.file", "is /nowhere/loss.py: No such file or directory"),
    ],
)
def test_mistakes_are_those_of_built_in_components(file: Path, change: dict[str, Any], key: str, words: str) -> None:
    part = {"file": str(file), "name": "mine", **change}
    if isinstance(of_aggregation := part.get("aggregation"), dict):
        part["aggregation"] = {"file": str(file), "name": "by_length", **of_aggregation}
    with pytest.raises(InvalidInput) as error:
        resolve({"loss": {name: value for name, value in part.items() if value is not None}})
    assert (error.value.source, error.value.key) == ("study.yaml: methods.mine", key)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("import math\n\nmath.squareroot(2)\n", "line 3: AttributeError"),
        ("import no_such_package_of_anybody\n", "line 1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("class E(BaseException): pass\nraise E\n", "line 2: E"),
        ("class E(Exception):\n    def __str__(self): return 1 / 0\nraise E\n", "line 3: E: E"),
        (LOSS.replace("(Clipped)", ""), "TypeError: Mine is of no kind: its base has to be PolicyLoss"),
        (LOSS.replace("def of(", "def off("), "whose Centred lacks of; accepted: a class that defines what its base"),
        (LOSS.replace('hyper_parameter(HALF, "not a literal", above=0.0)', "1.0"), "whose Mine has the field beta"),
        (LOSS.replace("beta: float", "beta"), "'beta' is a field but has no type annotation"),
        (
            LOSS.replace("    beta: float =", "    def __init__(self, x=1):\n        self.x = x\n\n    beta: float ="),
            "Mine cannot be",
        ),
        (
            LOSS.replace("    beta: float =", "    def __post_init__(self):\n        1 / 0\n\n    beta: float ="),
            "ZeroDivision",
        ),
        ("import beside\n", "accepted: one file that imports installed packages alone; beside.py beside it is not"),
        ("import beside.part\n", "; beside.py beside it is not"),
        ("import brok\n", "No module named 'brok'"),
        ("x = 1\n", "has no loss of that name; accepted: a file with a class that has @component('mine')"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_with_the_place(tmp_path: Path, source: str, words: str) -> None:
    file = tmp_path / "broken.py"
    (tmp_path / "beside.py").write_text("")
    file.write_text(source)
    with pytest.raises(InvalidInput) as error:
        resolve({"loss": {"file": str(file), "name": "mine"}})
    said = str(error.value)
    assert words in said and str(file) in said and said.count("broken.py") == 1


def test_a_file_that_never_ends_is_one_line_with_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.methods.component_file._SECONDS", 0.1)
    endless = tmp_path / "endless.py"
    endless.write_text("number = 1\nwhile True:\n    number += 1\n")
    with pytest.raises(NotAccepted, match=r"endless.py, line [23]: TimeoutError: computed for 0.1 seconds without"):
        components_in(endless)


def test_a_second_file_of_the_users_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    (file.parent / "helper_beside_the_loss.py").write_text("X = 1\n")
    file.write_text("import helper_beside_the_loss\n" + LOSS)
    with pytest.raises(InvalidInput) as error:
        resolve({"loss": {"file": str(file), "name": "mine"}})
    assert "imports helper_beside_the_loss" in str(error.value)


@pytest.mark.parametrize("encoded", [b"\xef\xbb\xbf", b"# coding: latin-1\n# \xe9\n"])
def test_a_file_in_any_encoding_that_python_runs_is_read(file: Path, encoded: bytes) -> None:
    file.write_bytes(encoded + LOSS.encode())
    assert compose(resolve({"loss": {"file": str(file), "name": "mine"}})).loss.name == "mine"


def test_a_file_has_a_page(file: Path) -> None:
    page = "\n".join(show_file(file))
    assert "Policy loss: mine" in page and "beta = 0.5: not a literal" in page
    assert f"loss: {{file: {file}, name: mine}}" in page
    assert f"loss: {{aggregation: {{file: {file}, name: by_length}}}}" in page and "power = 0.5: 0: the" in page
