"""Benchmarks from files and from copies of a Hub repository: columns, repairs, counts, hashes, exclusions."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evals.core.config.problem_sets import BenchmarkProblems
from evals.core.config.sections import LocalCopy
from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, read_jsonl, sha256_file, write_jsonl
from evals.grading import Case, GradingPool, Kind
from evals.problems.benchmark import REPAIRS, read_benchmark, repair
from evals.problems.disjoint import check_disjoint
from evals.problems.problem_set import write_benchmark
from rlvr.study.benchmarks import BENCHMARKS, read_benchmarks
from tests.stages import status

pytestmark = pytest.mark.usefixtures("datasets_cache")

DATA = Path(__file__).parents[4] / "shared/data/benchmarks"
LOCAL_NAMES = {
    "aime_2024": "aime24",
    "aime_2025": "aime25",
    "aime_2026": "aime26",
    "amc_2023": "amc23",
    "brumo_2025": "brumo25",
    "math_500": "math500",
}
LOCAL = (*LOCAL_NAMES, "hmmt_feb_2025", "hmmt_nov_2025", "hmmt_feb_2026", "minerva_math", "olympiadbench")
REAL = sorted(path.stem for path in BENCHMARKS.glob("*.yaml") if "source: hub" in path.read_text())
ROWS = [
    {"number": 7, "question": "What is $1+1$?", "solution": [r"Two: $\boxed{002}$"]},
    {"number": 8, "question": "Half?", "solution": [r"First \boxed{1}, then \boxed{$\frac{1}{2}$}."]},
    {"number": 9, "question": "Speed of light?", "solution": [r"\boxed{3e8}"]},
]


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "name": "tiny",
        "repository": "nobody/tiny",
        "revision": None,
        "split": "test",
        "columns": {"id": "number", "problem": "question", "answer": "solution"},
        "boxed_answer": True,
        "repairs": ["dollars", "integer", "e_notation"],
        "grader": "math",
        "gated": False,
        "count": 3,
        "sha256": None,
    }


def as_parquet(rows: list[dict[str, Any]], directory: Path) -> None:
    directory.mkdir()
    pd.DataFrame(rows).to_parquet(directory / "test-00000-of-00001.parquet")


def as_jsonl(rows: list[dict[str, Any]], directory: Path) -> None:
    write_jsonl(directory / "test.jsonl", rows)


def as_configuration(rows: list[dict[str, Any]], directory: Path) -> None:
    write_jsonl(directory / "data" / "rows.jsonl", rows)
    card = "---\nconfigs:\n- config_name: other\n  data_files:\n  - split: test\n    path: data/rows.jsonl\n---\n"
    (directory / "README.md").write_text(card)


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (as_parquet, {}),
        (as_jsonl, {}),
        (as_jsonl, {"files": ["test.jsonl"]}),
        (as_configuration, {"configuration": "other"}),
    ],
)
def test_a_copy_of_a_repository_is_read_as_the_hub_is(
    settings: dict[str, Any], tmp_path: Path, write: Callable[[list[dict[str, Any]], Path], None], changes: Any
) -> None:
    write(ROWS, tmp_path / "copy")
    write_benchmark({**settings, **changes, "path": str(tmp_path / "copy")}, tmp_path / "out")
    assert read_jsonl(tmp_path / "out" / "problems.jsonl") == [
        {"id": "tiny-7", "problem": "What is $1+1$?", "answer": "2", "family": "tiny"},
        {"id": "tiny-8", "problem": "Half?", "answer": r"\frac{1}{2}", "family": "tiny"},
        {"id": "tiny-9", "problem": "Speed of light?", "answer": r"3 \times 10^{8}", "family": "tiny"},
    ]
    details = read_json(tmp_path / "out" / "manifest.json")["details"]
    assert [(row["id"], row["repairs"], row["was"]) for row in details["repairs"]] == [
        ("tiny-7", ["integer"], "002"),
        ("tiny-8", ["dollars"], r"$\frac{1}{2}$"),
        ("tiny-9", ["e_notation"], "3e8"),
    ]


OWN = {"q": ["What is 1+1?", "Half?"], "gold": ["2", "1/2"], "kind": ["sum", "part"]}


def write_own(path: Path) -> None:
    frame = pd.DataFrame(OWN)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    else:
        frame.to_json(path, orient="records", lines=path.suffix == ".jsonl")


def test_numbers_and_lists_of_parquet_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "mine.PARQUET"
    pd.DataFrame({"q": ["a", "b"], "gold": [0.12345678901234567, 1e-12], "o": [["x", "y"], ["z", "w"]]}).to_parquet(
        path
    )
    own = {"name": "a", "path": str(path), "grader": "math", "columns": {"id": None, "problem": "q", "answer": "gold"}}
    rows = read_benchmark(BenchmarkProblems.parse(own, "")).rows
    assert [float(row["answer"]) for row in rows] == [0.12345678901234567, 1e-12]
    choice = {**own, "grader": "choice", "option_seed": 1}
    choice["columns"] = {"id": None, "problem": "q", "answer": None, "options": "o"}
    assert "x" in read_benchmark(BenchmarkProblems.parse(choice, "")).rows[0]["problem"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".json", ".jsonl"])
def test_a_file_of_ones_own_is_read_by_its_columns(tmp_path: Path, suffix: str) -> None:
    write_own(path := tmp_path / f"mine{suffix}")
    columns = {"id": None, "problem": "q", "answer": "gold", "topic": "kind"}
    own = {"name": "mine", "path": str(path), "grader": "math", "columns": columns}
    rows = read_benchmark(BenchmarkProblems.parse(own, "")).rows
    told = [(row["problem"], row["answer"], row["topic"]) for row in rows]
    assert told == [("What is 1+1?", "2", "sum"), ("Half?", "1/2", "part")]
    lacking = {**own, "columns": {**columns, "answer": "answer"}}
    with pytest.raises(UserError, match=r"mine.*lacks.*answer"):
        read_benchmark(BenchmarkProblems.parse(lacking, ""))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["q,gold"], "has 0 problems; expected one or more"),
        ([], "has 0 problems; expected one or more"),
        (["q,gold", "Half?,1/2", "Half?,1/3"], "column q: two problems have the same value"),
        (["q;gold", "Half?;1/2"], "row 1: lacks q, gold; has: q;gold"),
    ],
)
def test_a_file_without_problems_of_its_own_is_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    (path := tmp_path / "mine.csv").write_text("".join(f"{line}\n" for line in lines))
    columns = {"id": None, "problem": "q", "answer": "gold"}
    own = {"name": "mine", "path": str(path), "grader": "math", "columns": columns}
    with pytest.raises(UserError, match=words):
        read_benchmark(BenchmarkProblems.parse(own, ""))


def test_a_copy_of_a_hubs_set_may_have_its_columns_or_the_projects(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{**row, "solution": row["solution"][0]} for row in ROWS]
    renamed = [dict(zip(("id", "problem", "answer"), row.values(), strict=True)) for row in rows]
    for name, written in (("theirs", rows), ("ours", renamed)):
        write_jsonl(tmp_path / f"{name}.jsonl", written)
        read = read_benchmark(BenchmarkProblems.parse({**settings, "path": str(tmp_path / f"{name}.jsonl")}, ""))
        assert [row["answer"] for row in read.rows] == ["2", r"\frac{1}{2}", r"3 \times 10^{8}"]


def test_a_file_of_another_kind_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(InvalidInput, match=r"ends in \.xlsx; accepted: \.jsonl, \.json, \.csv, \.tsv, \.parquet"):
        read_benchmark(
            BenchmarkProblems.parse({"name": "mine", "path": str(tmp_path / "mine.xlsx"), "grader": "math"}, "")
        )


def test_the_example_of_the_page_is_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (BENCHMARKS.parents[1] / "docs/your_benchmark.md").read_text()
    rows, file = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("csv", "yaml"))  # type: ignore[index]
    (tmp_path / "riddles.csv").write_text(rows)
    (tmp_path / "riddles.yaml").write_text(file.replace("path: riddles.csv", f"path: {tmp_path}/riddles.csv"))
    monkeypatch.setattr("rlvr.study.benchmarks.BENCHMARKS", tmp_path)
    (benchmark,) = read_benchmarks(["riddles"], {}, "").values()
    read = read_benchmark(BenchmarkProblems.parse(benchmark.problem_settings(), ""))
    assert [row["answer"] for row in read.rows] == ["9", "1/2", "5"] and benchmark.entry.max_new_tokens == 512


def test_a_column_of_topics_may_not_be_empty(settings: dict[str, Any], tmp_path: Path) -> None:
    columns = {**settings["columns"], "topic": "subject"}
    for name, topics in {"whole": ["algebra", "physics", "algebra"], "lacking": ["algebra", "", "algebra"]}.items():
        rows = [{**row, "subject": topic} for row, topic in zip(ROWS, topics, strict=True)]
        as_jsonl(rows, tmp_path / name)
    changed = {**settings, "columns": columns}
    write_benchmark({**changed, "path": str(tmp_path / "whole")}, tmp_path / "out")
    check_disjoint(tmp_path / "out", tmp_path / "disjoint.json")
    topics = read_json(tmp_path / "disjoint.json")["topics"]
    assert topics == {"algebra": ["tiny-7", "tiny-9"], "physics": ["tiny-8"]}
    with pytest.raises(InvalidInput) as error:
        write_benchmark({**changed, "path": str(tmp_path / "lacking")}, tmp_path / "second")
    assert error.value.key == "subject"
    write_benchmark({**settings, "path": str(tmp_path / "whole")}, tmp_path / "plain")
    check_disjoint(tmp_path / "plain", tmp_path / "plain.json")
    assert "topics" not in read_json(tmp_path / "plain.json")


@pytest.mark.parametrize(
    ("selected", "kept"),
    [
        ({"first": "2024-08-01"}, [8, 9]),
        ({"first": "2024-07-31", "last": "2024-09-30"}, [7, 8]),
        ({"last": "2024-09"}, [7, 8]),
        ({"among": ["2024-07-31 23:59:59", "2025-01-02 00:00:00"]}, [7, 9]),
    ],
)
def test_rows_are_selected_by_date_and_a_local_file_is_taken_whole(
    settings: dict[str, Any], tmp_path: Path, selected: dict[str, Any], kept: list[int]
) -> None:
    dates = ("2024-07-31T23:59:59", "2024-09-30T10:30:00", "2025-01-02T00:00:00")  # the library reads them as times
    as_jsonl([{**row, "date": date} for row, date in zip(ROWS, dates, strict=True)], tmp_path / "copy")
    changed = {**settings, "rows": {"column": "date", **selected}}
    write_benchmark({**changed, "path": str(tmp_path / "copy"), "count": len(kept)}, tmp_path / "out")
    assert [row["id"] for row in read_jsonl(tmp_path / "out" / "problems.jsonl")] == [f"tiny-{id}" for id in kept]
    write_jsonl(tmp_path / "file.jsonl", [{"id": n, "problem": f"{n}?", "answer": "1"} for n in range(3)])
    write_benchmark({**changed, "path": str(tmp_path / "file.jsonl")}, tmp_path / "whole")
    assert len(read_jsonl(tmp_path / "whole" / "problems.jsonl")) == 3


def test_a_drawn_subset_does_not_depend_on_other_rows(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"number": number, "question": f"{number}?", "solution": "1"} for number in range(2000)]
    drawn = []
    for part in (rows, rows[::-1], rows[:1000]):
        as_jsonl(part, tmp_path / "copy")
        changed = {**settings, "rows": {"column": "number", "drawn": 200}, "count": 200}
        write_benchmark({**changed, "path": str(tmp_path / "copy")}, tmp_path / "out")
        drawn.append([int(row["id"].split("-")[1]) for row in read_jsonl(tmp_path / "out" / "problems.jsonl")])
    whole, backwards, half = drawn
    assert whole == sorted(whole) == backwards[::-1] and half == sorted(half)
    assert {number for number in whole if number < 1000} < set(half)
    assert 75 <= sum(number < 1000 for number in whole) <= 125  # of half the rows, within 3.5 standard errors
    assert whole[0] == min(whole) and sorted(whole, key=str) != whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rows": {"column": "number"}},
            "selects column number; accepted: with among, with tenths, with drawn, or with first, last or both",
        ),
        ({"rows": {"column": "number", "among": ["7"], "tenths": [1]}}, "accepted: with among, with tenths, with"),
        ({"rows": {"column": "number", "drawn": 2, "tenths": [1]}}, "accepted: with among, with tenths, with drawn,"),
        ({"rows": {"column": "number", "drawn": 2}}, "has 2 problems; expected 3"),
        ({"rows": {"column": "number", "tenths": [10]}}, r"rows\.tenths.*10"),
        ({"count": 4}, "has 3 problems; expected 4"),
        ({"sha256": "0" * 64}, "tiny: its problems have SHA-256 .*; expected 0000"),
        ({"columns": {"id": "number", "problem": "text", "answer": "solution"}}, "lacks column text; has: number, "),
        (
            {"columns": {"id": "question", "problem": "number", "answer": "solution"}, "split": "train"},
            "cannot be read as",
        ),
        ({"exclude": [{"id": 8, "answer": "1/3", "reason": "wrong"}]}, "the gold of tiny-8 is .*, not '1/3'"),
        ({"exclude": [{"id": 5, "answer": "1", "reason": "wrong"}]}, "the gold of tiny-5 is None, not '1'"),
    ],
)
def test_what_is_not_as_the_entry_says_stops_with_one_line(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    as_jsonl(ROWS, tmp_path / "copy")
    content = {**settings, **changes, "path": str(tmp_path / "copy")}
    assert status(write_benchmark, content, tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert re.search(message, line)
    assert not (tmp_path / "out").exists()


def test_the_hash_is_that_of_the_written_file(settings: dict[str, Any], tmp_path: Path) -> None:
    as_jsonl(ROWS, tmp_path / "copy")
    settings |= {"path": str(tmp_path / "copy"), "exclude": [{"id": 9, "answer": r"3 \times 10^{8}", "reason": "why"}]}
    write_benchmark(settings, tmp_path / "first")
    expected = sha256_file(tmp_path / "first" / "problems.jsonl")
    write_benchmark({**settings, "sha256": expected}, tmp_path / "second")
    details = read_json(tmp_path / "second" / "manifest.json")["details"]
    assert details["excluded"] == [{"id": "tiny-9", "reason": "why"}]
    assert details["rows"] == 2 and details["expected_sha256"] == expected
    assert [row["id"] for row in details["repairs"]] == ["tiny-7", "tiny-8"]


def test_a_hub_out_of_reach_is_one_line(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_arguments: object, **options: object) -> None:
        assert options["token"] is False, "no token but that of the environment may be used"
        raise ConnectionError("no route\nsecond line")

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError) as caught:
        read_benchmark(BenchmarkProblems.parse(settings, "x"))
    message = str(caught.value)
    assert message.startswith("tiny: nobody/tiny: cannot be read from the Hugging Face Hub (ConnectionError: no route)")
    assert "benchmark_sources: {tiny: {path: FILE_OR_DIRECTORY}}" in message and "\n" not in message


def test_the_hub_is_asked_for_the_pinned_revision(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[Any, dict[str, Any]]] = []

    def load_dataset(*arguments: object, **options: Any) -> Any:
        asked.append((arguments, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("HF_TOKEN", "secret")
    read_benchmark(BenchmarkProblems.parse({**settings, "revision": "a" * 40, "configuration": "c"}, "x"))
    read_benchmark(BenchmarkProblems.parse({**settings, "revision": "b" * 40, "files": ["x/test.jsonl"]}, "x"))
    assert asked[0] == (("nobody/tiny", "c"), {"split": "test", "revision": "a" * 40, "token": "secret"})
    assert asked[1][1]["data_files"] == {"test": [f"hf://datasets/nobody/tiny@{'b' * 40}/x/test.jsonl"]}
    assert not any("trust_remote_code" in options for _, options in asked)


@pytest.mark.parametrize(
    ("gold", "repaired"),
    [
        ("033", "33"),
        ("27.0", "27"),
        ("-1", "-1"),
        ("000", "0"),
        ("0.5", "0.5"),
        ("$69$,$84$", "69,84"),
        ("$221,$8$", "221,8"),
        (r"$(0, 1]$.", "(0, 1]"),
        (r"\$5", r"\$5"),
        ("8.7e8", r"8.7 \times 10^{8}"),
        ("1e-5", "10^{-5}"),
        ("2e^{3}", "2e^{3}"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
        ("-1./3", r"-\frac{1}{3}"),
        ("1/3", "1/3"),
        (r"\frac{1}{2}(\exp{a*t} - \exp{-a*t})", r"\frac{1}{2}(e^{at} - e^{-at})"),
    ],
)
def test_repairs_change_the_form_only(gold: str, repaired: str) -> None:
    assert repair(gold, list(REPAIRS))[0] == repaired
    assert repair(repaired, list(REPAIRS)) == (repaired, [])


def test_every_entry_is_accepted_and_has_both_prompts() -> None:
    entries = read_benchmarks(REAL, {}, "study.yaml")
    assert len(entries) == 21
    markers = {"choice": "Answer: $LETTER", "math": r"\boxed{}", "code": "Markdown code block"}
    for name, entry in entries.items():
        assert entry.problem_settings()["name"] == name
        for form in ("base", "chat"):
            assert entry.prompt(form).count("{problem}") == 1
        marker = markers[entry.grader]
        assert marker in entry.prompt("base") and marker in entry.prompt("chat")


def test_a_study_names_local_copies_relative_to_the_repository() -> None:
    copies = {"aime_2024": LocalCopy(path="data/aime.jsonl", sha256=None), "amc_2023": LocalCopy(path="/data/amc")}
    settings = read_benchmarks(["aime_2024"], copies, "study.yaml")["aime_2024"].problem_settings()
    assert settings["path"] == str(BENCHMARKS.parents[1] / "data/aime.jsonl")
    assert settings["sha256"] is None
    for name, message in (("aime24", "'aime24' is no benchmark"), ("chain_3", "'chain_3' is generated")):
        with pytest.raises(UserError, match=f"study.yaml: benchmark_sources: {message}"):
            read_benchmarks([], {name: LocalCopy(path="x")}, "study.yaml")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent")
@pytest.mark.parametrize("name", LOCAL)
def test_local_copies_are_the_known_problems_and_their_golds_equal_the_reference(name: str, tmp_path: Path) -> None:
    """Every repaired gold equals ``answer_norm``, every gold verifies itself, and hashes are the entries'."""
    path = DATA / f"{LOCAL_NAMES.get(name, name)}.jsonl"
    entry = read_benchmarks([name], {name: LocalCopy(path=str(path))}, "x")[name]
    write_benchmark(entry.problem_settings(), tmp_path)
    rows = read_jsonl(tmp_path / "problems.jsonl")
    reference = {f"{name}-{row['source_id']}": row["answer_norm"] for row in read_jsonl(path)}
    excluded = {row["id"] for row in read_json(tmp_path / "manifest.json")["details"]["excluded"]}
    assert reference.keys() - excluded == {row["id"] for row in rows}
    with GradingPool(workers=2) as pool:
        golds = [Case(rf"\boxed{{{row['answer']}}}", row["answer"]) for row in rows]
        assert [row["id"] for row, verdict in zip(rows, pool.grade(golds), strict=True) if not verdict.correct] == []
        equal = [Case(reference[row["id"]], row["answer"], Kind.ANSWER) for row in rows]
        assert [row["id"] for row, verdict in zip(rows, pool.grade(equal), strict=True) if not verdict.correct] == []
