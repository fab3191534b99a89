"""`snakemake rates`: the methods of a study at half, once and twice their learning rate (docs/evaluation.md)."""

from collections.abc import Mapping
from typing import Any

from evals.core.errors import InvalidInput
from rlvr.study.catalogue import variant
from rlvr.study.study import Study

RATES = "rates"
"""The name that it is asked for by."""
_SEEDS = 8
"""The most seeds that are trained at further rates."""
_FURTHER = {"rate_half": (0.5, "half the learning rate"), "rate_twice": (2.0, "twice the learning rate")}


def resolve_rates(study: Study, config: Mapping[str, Any], source: str) -> Study:
    """Resolve the study of the methods of ``config``, whose study is ``study``, at three learning rates each.

    Controls are left out: they are there to be found, and no candidates. UserError where no rate could be chosen.
    """
    if not study.methods:
        raise InvalidInput(source, "methods", "are none", "a study with methods, for `snakemake rates`")
    if study.config.validation is None:
        accepted = "a study with it, for `snakemake rates`: rates are chosen by scores on held-out problems"
        raise InvalidInput(source, "validation", "is not there", accepted)
    if len(study.config.training_seeds) < 2:
        accepted = "2 or more, for `snakemake rates`: a seed's rate is chosen by the others"
        raise InvalidInput(source, "seeds", f"are {list(study.config.training_seeds)}", accepted)
    if changing := study.config.changing_model:
        accepted = "changes of the study's methods, for `snakemake rates`"
        raise InvalidInput(source, f"models.{changing}.methods", "is given", accepted)
    methods: dict[str, Any] = {}
    for method, changes in config["methods"].items():
        if method in study.config.control_methods:
            continue
        methods[method] = changes
        for suffix, (factor, words) in _FURTHER.items():
            tried = variant(method, changes, study.methods[method]["title"], words, {})
            tried["learning_rate_factor"] = factor * study.config.methods[method].learning_rate_factor
            methods[f"{method}_{suffix}"] = tried
    if study.config.factorial is not None:
        raise InvalidInput(source, "factorial", "is given", "a study without it, for `snakemake rates`")
    left_out = ("controls", "doses", "checkpoint", "beside", "score_at")
    kept = {key: value for key, value in config.items() if key not in left_out}
    changed: dict[str, Any] = {
        "study": RATES,
        "folder": f"{study.config.folder}_{RATES}" if study.folder else f"studies/{RATES}",
    }
    changed |= {"methods": methods, "seeds": list(study.config.training_seeds[:_SEEDS])}
    return Study.resolve({**kept, **changed}, source)


def rates_of(study: Study) -> dict[str, dict[str, dict[str, float]]]:
    """The learning rates of a study that :func:`resolve_rates` made: model -> method -> its name at each -> rate."""
    rates: dict[str, dict[str, dict[str, float]]] = {}
    for model in study.config.models:
        for name in study.methods:
            method = next((name.removesuffix(f"_{suffix}") for suffix in _FURTHER if name.endswith(f"_{suffix}")), name)
            rate = study.config.training_of(name, RATES, model).learning_rate
            rates.setdefault(model, {}).setdefault(method, {})[name] = rate
    return rates
