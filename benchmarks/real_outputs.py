"""Write real outputs of models, with their references, as cases for ``benchmarks/grader_cases.py``.

``python benchmarks/real_outputs.py --repositories DIRECTORY --output DIRECTORY``

The directory holds clones named ``grade-school-math`` (openai), ``abel`` (GAIR-NLP), ``ToRA`` (microsoft), ``MMLU-Pro``
(TIGER-AI-Lab) and ``zero_shot_cot`` (kojima-takeshi188); they are read at their newest commit. ``expected`` is what
their authors say of an output, where they do.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evals.core.files import write_jsonl
from evals.grading.boxes import boxes, last_boxes

Row = dict[str, Any]

OPENAI_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
ABEL_FILES = [f"outputs/{name}/{size}.jsonl" for name in ("gsm8k", "gsm8k_robust") for size in ("7b", "13b", "70b")]
MMLU_PRO_MODELS = (
    "Meta-Llama-3_1-70B-Instruct",
    "Llama-2-7b-hf",
    "Phi-3-mini-4k-instruct",
    "Qwen1.5-72B-Chat",
    "Mixtral-8x7B-Instruct-v0.1",
    "Meta-Llama-3-8B",
    "gemini-1.5-flash-002",
    "mathstral-7B",
)


def read(repository: Path, name: str) -> bytes:
    """The bytes of a file of a clone, bare or not."""
    return subprocess.run(
        ["git", "-C", str(repository), "show", f"HEAD:{name}"], capture_output=True, check=True
    ).stdout


def read_rows(repository: Path, name: str) -> list[Row]:
    """The rows of a JSONL file of a clone."""
    return [json.loads(line) for line in read(repository, name).decode("utf-8").splitlines()]


def gsm8k(repositories: Path) -> Iterator[Row]:
    """13,190 outputs; OpenAI's models mark their answer with ``A:``, for which GSM8K's ``####`` is written."""
    rows = read_rows(repositories / "grade-school-math", "grade_school_math/data/example_model_solutions.jsonl")
    for number, row in enumerate(rows):
        gold = row["ground_truth"].rpartition("A: ")[2].strip()
        for model in OPENAI_MODELS:
            text = row[model]["solution"].replace("\nA: ", "\n#### ")
            yield case(f"openai-{model}-{number}", text, gold, row[model]["is_correct"])
    for name in ABEL_FILES:
        for row in read_rows(repositories / "abel", name):
            yield case(f"abel-{name[8:-6]}-{row['id']}", row["response"], row["gold"], row["result"])


def mathematics(repositories: Path) -> Iterator[Row]:
    """5,000 solutions of MATH's test set, each beside its own answer and beside the answer of the next problem."""
    rows = read_rows(repositories / "ToRA", "src/data/math/test.jsonl")
    answers = [", ".join(last_boxes(row["solution"]) or [""]) for row in rows]
    for number, row in enumerate(rows):
        yield case(f"math-own-{number}", row["solution"], answers[number], True)
        yield case(f"math-next-{number}", row["solution"], answers[(number + 1) % len(rows)], None)


def choices(repositories: Path) -> Iterator[Row]:
    """96,256 outputs of eight models on MMLU-Pro, base models among them."""
    for model in MMLU_PRO_MODELS:
        packed = read(repositories / "MMLU-Pro", f"eval_results/model_outputs_{model}_5shots.zip")
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".json") and "MACOSX" not in name)
            rows = json.loads(archive.read(name))
        for row in rows:
            text = row.get("generated_text") or row.get("model_outputs") or ""
            yield case(f"{model}-{row['question_id']}", text, row["answer"], None, "choice")


def statements(repositories: Path) -> Iterator[Row]:
    """3,822 outputs of GPT-3 that end in "the answer (arabic numerals) is 18", right where the first number is."""
    for name in ("gsm8k", "multiarith", "addsub", "singleeq", "svamp"):
        log = read(repositories / "zero_shot_cot", f"log/{name}_zero_shot_cot.log").decode("utf-8")
        for number, part in enumerate(re.split(r"\n\d+st data\n", log)[1:]):
            text = part.partition("\nA: ")[2].partition("\npred_before")[0]
            fields = dict(re.findall(r"^(pred_mode|GT) : (.*)$", part, re.MULTILINE))
            right = fields["pred_mode"] != "" and float(fields["pred_mode"]) == float(fields["GT"].replace(",", ""))
            yield case(f"zero-shot-{name}-{number}", text, fields["GT"], right)


def unmarked(repositories: Path) -> Iterator[Row]:
    """The outputs above without their mark, each beside what it had marked: is that what the last statement says?"""
    for row in gsm8k(repositories):
        text, _, marked = row["text"].rpartition("####")
        if text.strip() and any(map(str.isdigit, marked)):
            yield case(f"unmarked-{row['id']}", text.rstrip(), marked.strip(), True, "last_statement")
    for row in statements(repositories):
        text, _, marked = row["text"].partition("Therefore, the answer (arabic numerals) is")
        if number := re.search(r"-?\d[\d,]*(?:\.\d+)?", marked.replace("$", "")):
            yield case(f"unmarked-{row['id']}", text.rstrip(), number[0], True, "last_statement")
    for row in mathematics(repositories):
        closed = [box for box in boxes(row["text"]) if box.closing is not None]
        if row["expected"] and len(closed) == 1:
            ((begin, opening, closing, end),) = closed
            text = row["text"][:begin] + row["text"][opening:closing] + row["text"][end:]
            yield case(f"unmarked-{row['id']}", text, row["gold"], True, "last_statement")


def case(name: str, text: str, gold: str, expected: bool | None, kind: str = "completion") -> Row:
    """A row of the file."""
    return {"id": name, "text": text, "gold": gold, "kind": kind, "expected": expected}


def main() -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(description="Write real outputs as cases for the grader.")
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    files = {"gsm8k": gsm8k, "math": mathematics, "mmlu_pro": choices, "statements": statements, "unmarked": unmarked}
    for name, rows in files.items():
        written = list(rows(options.repositories))
        write_jsonl(options.output / f"{name}.jsonl", written)
        print(f"{len(written)} outputs: {options.output / name}.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
