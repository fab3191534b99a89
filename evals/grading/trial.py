"""The trial of a user's verifier, before anything depends on it (the rule ``try_verifier``)."""

from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_bytes
from evals.core.manifest import Manifest, hash_files
from evals.core.run_spec import VERIFIER_FILE
from evals.grading.code import VERIFIER_VERSION
from evals.grading.pool import GradingPool
from evals.grading.verdict import Case


def try_verifier(file: Path, problems: Path, out: Path) -> None:
    """Try a user's verifier on a gold answer and on an empty response, and keep a copy for what depends on it.

    Args:
        file: Python with ``def verify(problem, response)``.
        problems: problems.jsonl; the first problem is taken.
        out: the directory of the copy.
    """
    row = read_jsonl(problems, required=("id", "problem", "answer"))[0]
    gold = str(row["answer"])
    responses = {"its gold answer": gold, "an empty response": ""}
    with GradingPool(workers=1, verifier=file) as pool:
        verdicts = pool.grade(Case(response, gold, problem=row) for response in responses.values())
    for name, verdict in zip(responses, verdicts, strict=True):
        if verdict.error is not None:
            raise UserError(f"{file}: tried on problem {row['id']} with {name}: {verdict.error}")
    copy = out / VERIFIER_FILE
    write_bytes(copy, file.read_bytes())
    parameters = {"version": VERIFIER_VERSION, "sha256": sha256_file(copy)}
    Manifest(
        kind="verifier",
        inputs={str(problems): sha256_file(problems)},  # the user's file has the bytes of the copy, wherever it lies
        outputs=hash_files(out, copy),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
        details={"tried": {name: verdict.reward for name, verdict in zip(responses, verdicts, strict=True)}},
    ).write(out / "manifest.json")
