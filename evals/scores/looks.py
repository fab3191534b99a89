"""The decisions of a study that stops when it is certain: one look's comparisons in, its verdicts out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.core.comparisons import Comparison, Comparisons, Look, Looks, Verdict
from evals.core.files import write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from evals.core.records import ALL_BENCHMARKS


def write_look(
    comparisons: Path, earlier: Sequence[Path], margin: float, level: float, level_alone: float, out: Path
) -> None:
    """Judge the comparisons of one look.

    Args:
        comparisons: those of the methods that were not decided before, with intervals at the look's ``level``.
        earlier: the decisions of the look before, if there was one.
        margin: differences within it are equivalent; a fraction of one.
        level: of the look's intervals, so that all comparisons of the study together err in 5 %.
        level_alone: the same for a comparison by itself.
        out: decisions.json.
    """
    verify_outputs(comparisons.with_suffix(".manifest.json"), "comparisons")
    compared = Comparisons.read(comparisons)
    rows = [
        judge(row, margin, level, level_alone)
        for row in compared.comparisons
        if row.benchmark == ALL_BENCHMARKS and row.against == compared.reference_method
    ]
    before = [look for path in earlier for look in Looks.read(path).looks]
    content = Looks(margin=margin, looks=(*before, *rows)).to_json()
    write_json(out, content)
    parameters = {"margin": margin, "level": level, "level_alone": level_alone}
    details = {"decided": (decided := sum(row.is_decided for row in rows)), "open": len(rows) - decided}
    write_output_manifest("look", out.with_suffix(""), [out.suffix], [comparisons, *earlier], parameters, details)


def judge(row: Comparison, margin: float, level: float, level_alone: float) -> Look:
    """Judge one comparison by its interval: equivalent within the margin, else better or worse where it excludes 0.

    A difference in falls is judged by itself, at half of the level: the other half is spent when all seeds are there.
    """
    verdict = None
    if row.confidence_interval is not None:
        low, high = row.confidence_interval
        if -margin < low and high < margin:
            verdict = Verdict.EQUIVALENT
        elif low > 0.0 or high < 0.0:
            verdict = Verdict.BETTER if low > 0.0 else Verdict.WORSE
    falls = row.falls_differ if row.falls_p_value is not None and row.falls_p_value <= level / 2 else None
    of_row = {name: getattr(row, name) for name in ("model", "method", "seeds", "difference")}
    judged: dict[str, Any] = {"interval": row.confidence_interval, "verdict": verdict, "falls": falls}
    return Look(**of_row, level=level, level_alone=level_alone, **judged)
