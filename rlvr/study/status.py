"""Find stale results and why they are stale."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evals.core import arithmetic
from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file
from evals.core.intact import Comparison
from evals.core.manifest import Manifest, installed_packages, read_manifest
from evals.core.records import BASE, ResultStatus, Run
from evals.core.run_spec import VERL
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import INTEGER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.problems.problem_set import NOT_OF_THE_CONTENT
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.engines.verl import PINNED
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.runs.source_hash import edited_since
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, VALIDATION, Study

_MADE_FROM = "made from "
_NAMED = 3  # missing results that are named; on a fresh clone all are missing


Judge = Callable[..., ResultStatus]


def study_status(study: Study, files: Comparison | None = None) -> list[ResultStatus]:
    """The status of everything that the study makes up to its samples, what is made from what first.

    ``files`` says how files are compared with their manifests; by default by size and time.
    """
    judge = partial(_judge, files or Comparison())
    corpora, bases = {}, {}
    for name, model in study.models_from_scratch.items():
        wanted = {"version": BASE_MODEL_VERSION, "count": model.training.examples, **model.corpus.to_json()}
        corpora[name] = judge(f"corpus of base model {name}", f"base/{name}/corpus.manifest.json", "corpus", wanted)
        wanted = {"version": BASE_MODEL_VERSION, **model.training_settings()}
        trained = judge(f"base model {name}", f"base/{name}/manifest.json", "base_model", wanted)
        bases[name] = _following(trained, corpora[name])
    for name, existing in study.existing_models.items():
        wanted = {"source": "hugging_face", "revision": None if existing.path else existing.hub_revision}
        bases[name] = judge(f"model {name}", f"base/{name}/manifest.json", "base_model", wanted, exact=False)
    for name, served in study.served_models.items():
        wanted = {"source": "server", "model": served.model}
        bases[name] = judge(f"model {name}", f"base/{name}/manifest.json", "base_model", wanted, exact=False)
    problems = {name: _problems_status(judge, study.problem_settings(name), name) for name in study.benchmarks}
    training = [_problems_status(judge, study.training_settings, TRAIN, "training problems")] if study.methods else []
    solutions = {
        f"results/solutions/{name}/problems.jsonl": _problems_status(
            judge, settings, name, f"solutions {name}", "solutions"
        )
        for name, settings in study.solution_settings.items()
    }
    for name, tuned in study.fine_tuned_models.items():
        wanted = {"source": "fine_tuned", "version": ENGINE_VERSION, **tuned.fine_tuning.to_json()}
        path, named = f"base/{name}/manifest.json", study.solutions(name)
        status = _made_of(judge(f"fine-tuned model {name}", path, "base_model", wanted, exact=False), path, named)
        of_problems = training[:1] if TRAINING_PROBLEMS in named else []
        bases[name] = _following(status, *of_problems, *(solutions[file] for file in named if file in solutions))
    if study.validation_settings:
        training.append(_problems_status(judge, study.validation_settings, VALIDATION, "validation problems"))
    if TRAIN in study.verifiers:
        training.append(_verifier_status(judge, Path(study.verifiers[TRAIN])))
    policies = {f"{model}-{BASE}": status for model, status in bases.items()}
    runs = {
        run.run: _following(_run_status(judge, study, run), bases[run.model], *training) for run in study.trained_runs
    }
    policies |= runs
    samples = [
        _following(_samples_status(judge, study, run, name), policies[run.run], problems[name])
        for run in study.runs
        for name in study.benchmarks
    ]
    return [
        *corpora.values(),
        *solutions.values(),
        *bases.values(),
        *training,
        *problems.values(),
        *runs.values(),
        *samples,
    ]


def describe(statuses: Sequence[ResultStatus]) -> list[str]:
    """Describe missing and stale results, those with their reasons, the number of results that follow, and a count."""
    lines, following = [], 0
    missing = [status for status in statuses if status.missing]
    if missing:
        names = ", ".join(status.result for status in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        lines.append(f"missing  {names}{more}: not made yet, or deleted; snakemake makes what is missing")
    for status in statuses:
        if status.missing:
            continue
        own = [reason for reason in status.reasons if not reason.startswith(_MADE_FROM)]
        lines += [f"stale    {status.result}: {reason}" for reason in own]
        following += bool(status.reasons and not own)
    if following:
        lines.append(f"stale    {following} results that are made from these")
    edited = sorted({path for status in statuses for path in status.code_edited_since})
    if edited:
        lines.append(f"edited since some results were made, declared without effect on them: {', '.join(edited)}")
    digits = {status.arithmetic for status in statuses if status.arithmetic}
    if any(not each.startswith(arithmetic.PORTABLE) for each in digits) or len(digits) > 1:
        lines.append(arithmetic.summary(status.arithmetic for status in statuses if status.arithmetic))
    other = sum(bool(status.other_versions) for status in statuses)
    if other:
        versions = ", ".join(sorted({each for status in statuses for each in status.other_versions}))
        lines.append(f"computed with other versions than this environment has: {other} results ({versions})")
    if obstacle := arithmetic.processor()[1]:
        lines.append(f"what this machine computes on its CPU has digits of its own: {obstacle} (docs/portability.md)")
    stale = sum(not status.current for status in statuses)
    lines.append(f"{len(statuses) - stale} of {len(statuses)} results are current")
    return lines


def _following(status: ResultStatus, *sources: ResultStatus) -> ResultStatus:
    """``status``, stale as well where something that the result is made from is."""
    stale = tuple(f"{_MADE_FROM}{source.result}, which is not current" for source in sources if not source.current)
    return status.model_copy(update={"current": status.current and not stale, "reasons": status.reasons + stale})


def _made_of(status: ResultStatus, name: str, files: Sequence[str]) -> ResultStatus:
    """``status``, stale as well where the manifest ``name`` lists other files of solutions than ``files``."""
    if not status.current:
        return status
    inputs = read_manifest(Path("results", name), "base_model").inputs
    read = [path for path in inputs if not path.startswith("results/base/")]
    if read == list(files):
        return status
    reason = f"solutions are {', '.join(files)}; made with {', '.join(read)}"
    return status.model_copy(update={"current": False, "reasons": (reason,)})


def _problems_status(
    judge: Judge, settings: Mapping[str, Any], name: str, title: str = "", directory: str = "problems"
) -> ResultStatus:
    wanted = {key: value for key, value in settings.items() if key not in NOT_OF_THE_CONTENT}
    return judge(title or f"benchmark {name}", f"{directory}/{name}/manifest.json", "problems", wanted, exact=False)


def _verifier_status(judge: Judge, file: Path) -> ResultStatus:
    wanted = {"version": VERIFIER_VERSION, "sha256": sha256_file(file) if file.is_file() else "no such file"}
    return judge("verifier of the training problems", f"verifiers/{TRAIN}/manifest.json", "verifier", wanted)


def _run_status(judge: Judge, study: Study, run: Run) -> ResultStatus:
    wanted = study.run_spec(run.run).parameters()
    if study.engine == VERL:
        wanted["versions"] = {"engine": VERL_ENGINE_VERSION, "verl": PINNED, "grader": GRADER_VERSION}
    else:
        wanted["versions"] = {"engine": ENGINE_VERSION, "sampler": SAMPLER_VERSION, "grader": INTEGER_VERSION}
    return judge(f"run {run.run}", f"runs/{run.run}/manifest.json", "run", wanted)


def _samples_status(judge: Judge, study: Study, run: Run, benchmark: str) -> ResultStatus:
    evaluation = study.config.evaluation.to_json() | dict(study.config.models[run.model].prompting)
    evaluation.pop("samples_of", None)
    renamed = {"sampling_batch_size": "batch_size", "backend": "engine"}
    wanted = {renamed.get(key, key): value for key, value in evaluation.items()}
    if run.model in study.served_models:
        wanted["engine"] = "server"
        for key in ("max_model_len", "tensor_parallel_size"):  # of a model that is here: such samples do not have them
            wanted.pop(key, None)
    wanted["samples_per_problem"] = study.config.evaluation.samples(benchmark)
    wanted |= {"prompt": study.prompt(benchmark, run.model), "version": SAMPLER_VERSION}
    path = f"samples/{run.run}/{benchmark}/manifest.json"
    kind = "base model" if run.method == BASE else "run"
    return judge(f"samples of {kind} {run.run} on {benchmark}", path, "samples", wanted, exact=False)


def _judge(
    files: Comparison, result: str, name: str, kind: str, wanted: Mapping[str, Any], exact: bool = True
) -> ResultStatus:
    """Compare a manifest under results/ with what is configured, with its own files and with those it was made from."""
    path = Path("results", name)
    try:
        manifest = read_manifest(path, kind)
    except UserError as error:
        return ResultStatus(result=result, current=False, missing=not path.exists(), reasons=(str(error),))
    made_from = manifest.parameters if exact else {key: manifest.parameters.get(key) for key in wanted}
    reasons = (*_differences(made_from, wanted), *_changed_inputs(manifest), *files.faults(path, manifest))
    source = manifest.details.get("source")
    edited = tuple(edited_since(source)) if source else ()
    computed = kind in ("base_model", "run", "samples") and "source" not in manifest.parameters
    return ResultStatus(
        result=result,
        current=not reasons,
        reasons=reasons,
        code_edited_since=edited,
        arithmetic=arithmetic.label(manifest.environment) if computed else "",
        other_versions=tuple(_other_versions(manifest)) if computed else (),
    )


def _other_versions(manifest: Manifest) -> Iterator[str]:
    """Packages that compute results, of which another version is installed now than made this one."""
    now, then = installed_packages(), manifest.environment.get("packages", {})
    for name in ("torch", "transformers", "numpy"):
        if name in then and now.get(name) != then[name]:
            yield f"{name} {then[name]}, now {now.get(name, 'none')}"


def _differences(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Lines such as ``training.learning_rate: 0.0003 -> 0.001``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield f"{key}: {old} -> {new}"


def _changed_inputs(manifest: Manifest) -> Iterator[str]:
    """Inputs whose own manifest now records other bytes than were read."""
    for name, digest in manifest.inputs.items():
        path = Path(name)
        candidates = [path.with_suffix(".manifest.json"), *(parent / "manifest.json" for parent in path.parents)]
        owner = next((candidate for candidate in candidates if candidate.is_file()), None)
        if owner is None:
            continue
        recorded = read_json(owner).get("outputs", {}).get(path.relative_to(owner.parent).as_posix())
        if recorded is not None and recorded != digest:
            yield f"{name}: {digest[:12]} -> {recorded[:12]}"
