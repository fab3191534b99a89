"""Configurations, files and manifests that nobody would write: read, or refused in one line; never anything else.

Seconds of it run with the other tests, ``make fuzz`` for hours. What is found becomes an ``@example``.
"""

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from evals.core.errors import UserError
from evals.core.files import parse_json, sha256_file
from evals.core.manifest import Manifest, hash_files, is_sealed, read_any_manifest
from evals.core.yaml_file import read_yaml
from evals.trace.commands import verify
from rlvr.study.study import Study
from tests.security.hostile import many, one_line, places, replaced, values

REPOSITORY = Path(__file__).resolve().parents[2]
SMOKE: dict[str, Any] = read_yaml(REPOSITORY / "config/smoke.yaml")


@many
@given(st.sampled_from(places(SMOKE)[1:]), values)
@example(("benchmarks",), ["a" * 300])
@example(("seeds",), [10**400])
@example(("models",), ["\n"])
@example(("methods",), {"a\n": {"extends": "dapo"}})
@example(("problems",), None)
def test_a_study_is_resolved_or_refused(place: tuple[Any, ...], value: Any) -> None:
    try:
        Study.resolve(replaced(SMOKE, place, value))
    except UserError as error:
        one_line(error)


@many
@given(st.text(alphabet="[]{}:,&*!-?|>'\"%@ \n\tab1", max_size=200))
@example("a: &a [*a]")
@example("? [a]\n: b")
@example("<<: 5")
@example("a: 0x" + "f" * 5000)
@example("[" * 5000)
@example("2001-13-45: a")
@example("a: 2001-13-45")
def test_yaml_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        read_yaml(path)
    except UserError as error:
        one_line(error)


@many
@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b"1" * 10_000)
@example(b"\xff\xfe[")
def test_json_is_read_or_refused(content: bytes) -> None:
    try:
        parse_json(content, "x")
    except UserError as error:
        one_line(error)


FIELDS = ["schema", "kind", "inputs", "outputs", "parameters", "fingerprint", "details"]
FIELDS += ["environment", "created", "sizes"]


@many
@given(st.sampled_from([*FIELDS, "sha256"]), values)
@example("outputs", [])
@example("outputs", {"x.json": None})
@example("inputs", {"x\x00y": "a"})
@example("outputs", {"../../x": "a"})
@example("inputs", {"\ud800": "a"})
@example("inputs", {"": ""})
@example("inputs", {"x" * 300: "a"})
@example("outputs", {"x/" * 3000: "a"})
def test_a_manifest_is_read_or_named(tmp_path: Path, field: str, value: Any) -> None:
    """Whatever stands in it, a changed manifest is a fault in one line."""
    results = tmp_path / "results"
    (results / "tables").mkdir(parents=True, exist_ok=True)
    (results / "tables/x.csv").write_text("method\n")
    (results / "runs.json").write_text("[]")
    path = results / "tables/x.manifest.json"
    inputs = {"results/runs.json": sha256_file(results / "runs.json")}
    Manifest("table", inputs, hash_files(path.parent, results / "tables/x.csv"), {}, "f").write(path)
    verify(tmp_path)
    content = {**json.loads(path.read_text()), field: value}
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        read_any_manifest(path)
        is_sealed(path)
    except UserError as error:
        one_line(error)
    try:
        verify(tmp_path)
    except UserError as error:
        one_line(error)
    else:
        raise AssertionError(f"{field} = {value!r} passed")
