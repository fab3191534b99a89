"""The notes below the main table: on controls, further decodings, contrast, arithmetic, early stops, near copies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from evals.core import arithmetic
from evals.core.comparisons import Comparison
from evals.core.files import read_json
from evals.core.manifest import read_any_manifest
from evals.core.records import BASE, Condition
from evals.results import Results
from evals.tables import numbers
from evals.tables.differences import difference_text


def controls_note(results: Results) -> str:
    """Say for each model whether this run of the study found its controls to be what they are known to be.

    Empty without controls.
    """
    sentences = []
    for model in dict.fromkeys(run.model for run in results.runs if results.controls):
        rows = {kind: results.condition(method or "", model) for kind, method in dict(results.controls or {}).items()}
        pairs = {kind: (row, results.comparison(row, results.reference_method)) for kind, row in rows.items() if row}
        controls = {kind: (row, compared) for kind, (row, compared) in pairs.items() if compared}
        if not controls:
            continue
        (harmful, of_harmful), (neutral, of_neutral) = controls["positive"], controls["negative"]
        saw, flagged = of_harmful.is_harm, of_neutral.verdict.is_difference or of_neutral.falls is not None
        sentence = (
            f"{'saw' if saw else 'DID NOT SEE'} the harm of {harmful.title} ({_in_short(of_harmful)}) and "
            f"{'FLAGGED' if flagged else 'did not flag'} {neutral.title}, which changes nothing "
            f"({_in_short(of_neutral)}){'; its other verdicts are in doubt' if flagged or not saw else ''}"
        )
        if "random_rewards" in controls:
            row, compared = controls["random_rewards"]
            gain, is_worse = results.comparison(row, BASE), compared.is_harm
            gained = "" if gain is None else f" gained {numbers.points(gain.difference)} pp over the base model and"
            sentence += (
                f"; {row.title}, whose rewards are drawn by chance,{gained} is {'' if is_worse else 'NOT '}worse than "
                f"{results.reference_title} ({_in_short(compared)})"
                f"{'' if is_worse else ', so that no gain here shows that rewards were learned from'}"
            )
        sentences.append(sentence)
    return f"Controls: this run of the study {'; it '.join(sentences)}." if sentences else ""


def _in_short(comparison: Comparison) -> str:
    words, p_value = f"{comparison.words}, {numbers.points(comparison.difference)} pp", comparison.p_value_holm
    return words if p_value is None else f"{words}, p after Holm {numbers.p_value(p_value)}"


def decodings_note(results: Results, decoded: Mapping[str, Results]) -> str:
    """Say for each further decoding on which methods its verdict differs in sign, or in being one."""
    sentences = []
    for name, others in decoded.items():
        differing, agreeing = list[str](), 0
        for row in results.conditions:
            ours, theirs = (each.comparison(row, results.reference_method) for each in (results, others))
            if ours and theirs and _sign(ours) != _sign(theirs):
                words = f"{difference_text(theirs)}, {theirs.verdict.value}; here {ours.verdict.value}"
                differing.append(f"{row.title} ({words})")
            else:
                agreeing += bool(ours and theirs)
        same = f"the other {agreeing}" if differing else f"all {agreeing}"
        said = [*differing, f"{same} agree in sign and significance" if agreeing else "none agrees"]
        if differing or agreeing:
            sentences.append(f"{name.capitalize()} beside these verdicts: {'; '.join(said)}.")
    return " ".join(sentences)


def _sign(comparison: Comparison) -> tuple[bool, bool]:
    return comparison.verdict.is_difference, comparison.is_harm


def contrast_note(results: Results) -> str:
    """Say what the angles are and where their floor lies; nothing where none was measured."""
    if not results.contrasts:
        return ""
    floor = fmean(contrast.floor_degrees for contrast in results.contrasts.values())
    return (
        f"Contrast: the mean angle between a method's gradient and that of {results.reference_title} on the same "
        f"rollouts (docs/evaluation.md); {numbers.NOTHING}: not measured, as where methods differ in the rollouts that "
        f"they train on. Random token weights in the same runs have {numbers.decimal(floor)} on average: a method "
        "has no contrast with the reference if the interval of its angle over theirs begins at 1 or below and ends "
        "below 2; more seeds are then unlikely to show a difference. "
    )


def arithmetic_note(manifests: Sequence[Path], rows: Sequence[Condition]) -> list[str]:
    """Say which arithmetic the results with these manifests were computed with, and which rows mix several."""
    read = {path: read_any_manifest(path) for path in manifests}
    # A model that was imported was not computed here.
    computed = {path: manifest for path, manifest in read.items() if "source" not in manifest.parameters}
    # Threads decide how sums are rounded. Each kind of job has its own number, and all jobs of a kind have one.
    threads, of_kinds = dict[Path, str](), defaultdict[str, set[str]](set)
    for path, manifest in computed.items():
        recorded = manifest.environment.get("arithmetic") or {}  # one thread where a job computed nothing itself
        threads[path] = " and ".join(map(str, manifest.details.get("threads") or [recorded.get("threads", 1)]))
        of_kinds[manifest.kind].add(threads[path])
    labels = {
        path: arithmetic.label(manifest.environment)
        + (f", threads: {threads[path]}" if len(of_kinds[manifest.kind]) > 1 else "")
        for path, manifest in computed.items()
    }
    line = arithmetic.summary(labels.values())
    # A base model is one job, whose threads the study says; of training runs and samples one is the rule.
    named = {"training runs": of_kinds["run"], "samples": of_kinds["samples"]}
    if told := [f"{min(made)} of {name}" for name, made in named.items() if len(made) == 1 and made != {"1"}]:
        line += f" Threads: {', '.join(told)}."

    def kinds(row: Condition) -> set[str]:
        names = {run.run for run in row.runs}
        return {label for path, label in labels.items() if names.intersection(path.parts)}

    if mixed := [row.title for row in rows if len(kinds(row)) > 1]:
        line += f" Rows that mix them: {', '.join(mixed)}."
    return [line] if line else []


def early_stop_note(manifests: Sequence[Path]) -> list[str]:
    """Name the training runs with these manifests that stopped early (``training.early_stop``)."""
    stopped = []
    for path in manifests:
        manifest = read_any_manifest(path)
        training = manifest.parameters.get("training", {}) if manifest.kind == "run" else {}
        if "early_stop" in training and manifest.details["steps"] < training["steps"]:
            stopped.append(f"{path.parent.name} after {manifest.details['steps']} of {training['steps']} steps")
    return [f"Stopped early: {', '.join(stopped)}. They count as they ended."] if stopped else []


def near_copies_note(results: Results, problems: Path) -> tuple[list[str], list[Path]]:
    """Count the problems of each benchmark that are training problems but for their numbers, by files that are read."""
    paths = {name: path for name in results.benchmarks if (path := problems / name / "disjoint.json").is_file()}
    checks = {name: read_json(path) for name, path in paths.items()}
    counts = {name: (len(check.get("near_copies", {})), check["problems"]) for name, check in checks.items()}
    said = [f"{copies} of {of} problems of {name}" for name, (copies, of) in counts.items() if copies]
    note = f"Training problems but for their numbers, in disjoint.json: {', '.join(said)}."
    return [note] if said else [], [*paths.values()]
