"""Files with text that no file can hold, such as half a surrogate pair, and files that were made to do harm."""

import bz2
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evals.core import files
from evals.core.errors import InvalidInput, UserError
from evals.core.files import (
    parse_json,
    read_json,
    read_jsonl,
    replacing,
    sha256_file,
    write_json,
    write_jsonl,
    write_text,
)
from evals.core.single_writer import single_writer
from evals.core.yaml_file import read_yaml
from evals.grading import Case, GradingPool, Kind, Reason
from tests.stages import grade, status

_ANY_TEXT = st.text(st.characters(exclude_categories=()))


@settings(max_examples=50)
@given(_ANY_TEXT)
@example("\ud800 x\udfff")
@example("\ud83d\ude00")
def test_json_lines_hold_any_text(tmp_path: Path, text: str) -> None:
    pair = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # two halves side by side are one
    write_json(tmp_path / "x.json", {"text": text})
    assert read_json(tmp_path / "x.json") == {"text": pair}
    for name in ("x.jsonl", "x.jsonl.bz2"):
        write_jsonl(tmp_path / name, [{"text": text}, {"text": text}])
        assert read_jsonl(tmp_path / name) == [{"text": pair}] * 2


_ROWS = [{"problem_id": f"p-{n:03d}", "text": f"{n} und {n * n} geben {n + n * n} ½"} for n in range(20_000)]


def test_compressed_lines_have_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    """More than one block of bzip2, which holds 900,000 bytes."""
    for name in ("x.jsonl.bz2", "x.jsonl"):
        write_jsonl(tmp_path / name, _ROWS)
    assert sha256_file(tmp_path / "x.jsonl.bz2") == "6f6a65354c3b9ff9079f83b0df221cc36a88d641f0efede5bff496f8b0703291"
    assert bz2.decompress((tmp_path / "x.jsonl.bz2").read_bytes()) == (tmp_path / "x.jsonl").read_bytes()
    assert read_jsonl(tmp_path / "x.jsonl.bz2") == _ROWS
    write_jsonl(tmp_path / "x.jsonl.bz2", _ROWS[:1])
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl.bz2"], "it takes the place of an earlier version's"


def test_a_cut_or_damaged_compressed_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.bz2"
    write_jsonl(path, _ROWS[:100])
    whole = path.read_bytes()
    for cut in (0, 1, 3, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"x\.jsonl\.bz2: is cut off"):
            read_jsonl(path)
    for place in (0, 4, 20, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"x\.jsonl\.bz2: (cannot be read: Invalid data|is cut off)"):
            read_jsonl(path)
    path.write_bytes(bz2.compress(b'{"a": 1}\n{"a": '))
    with pytest.raises(UserError, match=r"x\.jsonl\.bz2: line 2: is not valid JSON"):
        read_jsonl(path)


def test_what_a_killed_writer_left_goes_with_the_next_write_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    """No handler runs when a process is killed, and by a SIGTERM without one."""
    path = tmp_path / "model[1].safetensors"
    for number in (signal.SIGKILL, signal.SIGTERM):
        program = f"from evals.core.files import *\nwith replacing(Path({str(path)!r})):\n"
        program += f"    os.kill(os.getpid(), {number:d})"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -number
        assert len(list(tmp_path.iterdir())) == 1, "the second has removed what the first one left"
    with replacing(path) as living:
        assert list(tmp_path.iterdir()) == [living]
        living.write_text("mine")
        write_text(path, "another's")
        assert living.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [path.name] and path.read_text() == "mine"


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_files_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == mode


def test_a_document_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    (tmp_path / "x.json").write_text("[1, 2, 3]  ")
    with pytest.raises(UserError, match="has more than 10 bytes"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    assert read_json(tmp_path / "x.json") == [1, 2, 3]


def test_a_message_does_nothing_to_a_terminal() -> None:
    for error in (UserError("a\x1b]0;owned\x07\n\u202e\ud800"), InvalidInput("f", "a\nb", "is \x1b[2J")):
        assert str(error).isprintable()
    assert str(UserError("80 ± 1 – ü")) == "80 ± 1 – ü"


def test_plain_text_shows_a_question_mark(tmp_path: Path) -> None:
    write_text(tmp_path / "x.md", "a\ud800b\U0001f600")
    assert (tmp_path / "x.md").read_text(encoding="utf-8") == "a?b\U0001f600"


def test_answers_with_half_a_pair_are_graded() -> None:
    cases = [
        Case("\ud800 so \\boxed{7}\udfff", "7"),
        Case("\\boxed{7\ud800}", "7"),
        Case("\\boxed{x+\ud83d}", "x+1"),
        Case("Answer: \udc00", "B", Kind.CHOICE),
        Case("\\boxed{\\sqrt{4}}", "2\ud800"),
    ]
    with GradingPool(workers=1) as pool:
        verdicts = pool.grade(cases)
    assert [verdict.correct for verdict in verdicts] == [True, False, False, False, False]
    assert verdicts[3].reason is Reason.NO_ANSWER
    for verdict in verdicts:
        (verdict.answer or "").encode("utf-8")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
"""Ten lines that stand for four thousand million values."""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (BOMB, "its aliases stand for more than 1000000 values"),
        ("a: &a [*a]\n", "holds itself by an alias"),
        ("[" * 100_000, "is nested too deeply"),
        ("a: 1\nb: 2\na: 3\n", "in line 3 (the key a stands twice, first in line 1)"),
        ("a:\n  b: 1\n  b: 1\n", "in line 3 (the key b stands twice"),
        ("a: {b: 1, b: 2}\n", "the key b stands twice"),
        ("a: [1\n", "is not valid YAML in line 2 ("),
        ("5: x\n", "in line 1 (the key 5 is no text"),
        ("a: !!python/object/apply:os.system [id]\n", "is not valid YAML in line 1 ("),
    ],
)
def test_yaml_that_is_more_than_it_seems_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert str(refused.value).startswith(str(path)) and complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_aliases_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("-2E+3", -2000.0), ("1.5e3", 1500.0), ("e5", "e5")])
def test_a_number_with_an_exponent_is_a_number(text: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"a: {text}\n")
    assert read_yaml(path) == {"a": value}


def test_json_of_any_depth_is_answered_in_one_line(tmp_path: Path) -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000):
        with pytest.raises(UserError, match="nested too deeply"):
            parse_json(text, "x")
    (tmp_path / "x.jsonl").write_text("[" * 200_000)
    with pytest.raises(UserError, match="line 1: is JSON that is nested too deeply"):
        read_jsonl(tmp_path / "x.jsonl")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"garbage" * 50, None])
def test_damaged_parquet_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.parquet"
    if content is None:  # sound but for its middle
        files.write_parquet(path, pd.DataFrame({"step": range(1000), "text": ["x" * 50] * 1000}))
        whole = path.read_bytes()
        content = whole[:100] + bytes(len(whole) - 300) + whole[-200:]
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.parquet: is not parquet") as refused:
        files.read_parquet(path)
    assert "\\n" not in str(refused.value)
    with pytest.raises(UserError, match="no such file"):
        files.read_parquet(tmp_path / "y.parquet")


# A job that outlived its study is waited for, by the stages that take long.

HOLDER = """
import sys, time
from pathlib import Path
from evals.core.single_writer import single_writer
with single_writer(Path(sys.argv[1]), "works here"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_waited_for_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} "), single_writer(tmp_path, "works here", 0):
        pass
    threading.Timer(3.0, holder.kill).start()
    with single_writer(tmp_path, "works here"):
        assert holder.wait() != 0
    assert f"waiting for process {holder.pid}, which works here" in capsys.readouterr().out


def test_grading_waits_for_whoever_writes_there(tmp_path: Path) -> None:
    """It fails on its inputs, which do not exist, but not before it may write."""
    out = tmp_path / "out"
    done = threading.Thread(target=status, args=(grade, Path("none"), Path("none"), out))
    with single_writer(out / ".writer", "works here"):
        done.start()
        time.sleep(1.5)
        assert done.is_alive()
    done.join(timeout=600)
    assert not done.is_alive()
