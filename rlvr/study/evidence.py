"""What a report says of the evidence that a study gives, and the settings behind its numbers in papers' terms."""

from __future__ import annotations

import csv
from typing import Any

from evals.core.config.base_models import FromScratch
from evals.core.config.study import StudyConfig
from evals.core.errors import counted
from evals.core.run_spec import VERL
from evals.core.yaml_file import read_yaml
from rlvr.study.source_files import CONFIG
from rlvr.study.study import Study

_FEWEST_STEPS = 10  # of a run that shows anything


def notes(main: Study, study: Study) -> tuple[str, ...]:
    """The question of a study, if it says one, and what the numbers of the ``main`` one are evidence of."""
    question = study.config.question
    return tuple(filter(None, (question, evidence(main), known_to_show(main))))


def known_to_show(study: Study) -> str:
    """Say what the task of a study is known to show: effects of RLVR, and orders of methods that hold on other tasks.

    Nothing of a study without the first model of config/reference/families.csv (:mod:`evals.tables.families`), on its
    corpus and training problems, those of config/config.yaml, nor of one that is too short to show anything.
    """
    rows, effects = (
        list(csv.DictReader((CONFIG / "reference" / name).read_text(encoding="utf-8").splitlines()))
        for name in ("families.csv", "phenomena.csv")
    )
    families = {row["family"]: row for row in rows}
    first, *others = families
    if not study.methods or study.config.training["steps"] < _FEWEST_STEPS or not _has_default_task(study, first):
        return ""
    shares = ("decision_accuracy", "decision_accuracy_confidence_low", "decision_accuracy_confidence_high")
    orders = [
        "{} {:.0f} % [{:.0f}, {:.0f}]".format(other, *(100 * float(families[other][share]) for share in shares))
        + f" (signal to noise {float(families[other]['signal_to_noise']):.1f})"
        for other in others
        if families[other]["decision_accuracy"]
    ]
    answers = [row["answer"] for row in effects if not row["answer"].startswith("not measured")]
    ordered = f"Pairs of methods that stand in its order on another task or size: {', '.join(orders)}; chance is 50 %. "
    return (
        f"Testbed: {first} and further studies show {answers.count('reproduced')} of {len(answers)} known effects of "
        f"RLVR that were measured (docs/results/phenomena.md). {ordered if orders else ''}"
        f"Signal to noise: {float(families[first]['signal_to_noise']):.1f} (docs/results/task_design.md)."
    )


def _has_default_task(study: Study, model: str) -> bool:
    """Return whether a study trains the model of config/config.yaml on its corpus, and methods on its problems."""
    default = StudyConfig.parse(read_yaml(CONFIG / "config.yaml"), "config.yaml")
    ours, theirs = study.config.models.get(model), default.models[model]
    if not isinstance(ours, FromScratch) or not isinstance(theirs, FromScratch):
        return False
    return ours.corpus == theirs.corpus and study.config.problems == default.problems


def evidence(study: Study) -> str:
    """A sentence on the evidence that the numbers give."""
    if study.methods and (steps := study.config.training["steps"]) < _FEWEST_STEPS:
        size = f"its training runs have {counted(steps, 'rollout step')}"
        return f"This study tries the machinery: {size}, and its numbers mean nothing."
    if not study.methods:
        names = "; ".join(map(study.model_title, study.config.models))
        return (
            f"Evaluated without training: {names}. Intervals are over problems; the numbers say nothing about other"
            " training runs of such a model."
        )
    if (study.existing_models or study.fine_tuned_models) and study.engine != VERL:
        return (
            "A pretrained model, trained on one machine: this shows what was measured on it. It is no evidence"
            " about other models."
        )
    if study.existing_models:
        return (
            f"Trained by {study.engine}. The tables say what was measured; what the study departs from its paper"
            " in stands in its file."
        )
    if (
        any(benchmark.entry.source != "generated" for benchmark in study.benchmarks.values())
        or "columns" in study.training_settings
    ):
        return (
            "Real problems and a tiny model made from scratch on arithmetic: this shows that they pass"
            " through the machinery. It is no evidence about any model's ability."
        )
    return (
        "Generated problems and a tiny model made from scratch: this shows how the methods behave on this task, and"
        " that the machinery works. It is no evidence about models of billions of parameters."
    )


def own_settings(study: Study) -> dict[str, Any]:
    """The settings behind this study's numbers, in the terms of config/reference/settings.yaml."""
    sampling = {key: getattr(study.config.evaluation, key) for key in ("temperature", "top_p", "max_new_tokens")}
    models = {name: study.published_name(name) for name in study.config.models}
    prompt = "another than in training" if study.benchmarks_with_another_prompt else "that of training"
    decays = any(training.falling_steps for training in study.training.values())
    best = study.config.best_checkpoint
    checkpoint = f"best {best.benchmark} avg@{best.k}" if best else "last"
    checkpoint += ", after a decay of the learning rate" if decays else ""
    return {
        "models": models,
        "methods": study.published_methods,
        "training_problems": study.training_problems,
        "checkpoint": checkpoint,
        "evaluation_prompt": prompt,
        **sampling,
    }
