"""Simulates studies whose benchmarks have topics: false verdicts with topics as clusters, and with problems alone.

    python benchmarks/topics.py --studies 600 --out topics.json

A study has a reference and nine methods that are equal to it over all topics there could be. In each of the twelve
topics of ten problems a method differs by an amount of its own, of standard deviation 0.5 on the logit scale, which all
problems of the topic share. Runs are looked at after 4, 6, 8, 11 and 16 seeds, and a method is decided by the interval
of its look, as a study decides it.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from evals.statistics.difference import Arm, estimate_difference
from evals.statistics.sequential import nominal_levels
from evals.statistics.suite import Clusters, Suite

LOOKS, METHODS, MARGIN, SAMPLES = (4, 6, 8, 11, 16), 9, 0.02, 8
LEVEL, PROBLEM_SD, SEED_SD = 0.05, 1.4, 0.1


def study(number: int, topics: int, size: int, topic_sd: float) -> np.ndarray:
    """The shares of correct samples [methods + 1, seeds, problems] of a study."""
    generator = np.random.default_rng([number, topics, size, round(100 * topic_sd)])
    difficulty = generator.normal(0.5, PROBLEM_SD, topics * size)
    of_topics = np.repeat(generator.normal(0.0, topic_sd, (METHODS + 1, topics)), size, axis=1)
    of_topics[0] = 0.0  # the reference
    of_seeds = generator.normal(0.0, SEED_SD, (METHODS + 1, LOOKS[-1], 1))
    rates = 1.0 / (1.0 + np.exp(-(difficulty + of_topics[:, None] + of_seeds)))
    return generator.binomial(SAMPLES, rates) / SAMPLES


def decided(accuracies: np.ndarray, clusters: Clusters) -> list[tuple[str, bool]]:
    """The verdict on each method, and whether the interval of its last look has the true difference, 0."""
    levels, verdicts = nominal_levels(LOOKS, LOOKS[-1], LEVEL / METHODS), list[tuple[str, bool]]()
    for method in accuracies[1:]:
        verdict, low, high = "not decided", 0.0, 0.0
        for seeds, level in zip(LOOKS, levels, strict=True):
            one, other = (Arm([values[:seeds]], [SAMPLES]) for values in (method, accuracies[0]))
            compared = estimate_difference(one, other, Suite(clusters=[clusters]))
            low, high = (float(end) for end in compared.interval(1.0 - level))
            if low > 0.0 or high < 0.0:
                verdict = "better" if low > 0.0 else "worse"
            elif low > -MARGIN and high < MARGIN:
                verdict = "equivalent"
            if verdict != "not decided":
                break
        verdicts.append((verdict, low <= 0.0 <= high))
    return verdicts


def simulate(studies: int, topics: int, size: int, topic_sd: float) -> list[dict[str, object]]:
    """The rates over studies, with topics as clusters and without."""
    rows = []
    labels = np.repeat(np.arange(topics), size)
    drawn = [study(number, topics, size, topic_sd) for number in range(studies)]
    for name, clusters in (("problems", None), ("topics", labels)):
        decisions = [decided(accuracies, clusters) for accuracies in drawn]
        false = sum(any(verdict in ("better", "worse") for verdict, _ in of_study) for of_study in decisions)
        every = [row for of_study in decisions for row in of_study]
        rows.append(
            {
                "topics": topics,
                "problems": topics * size,
                "topic_sd": topic_sd,
                "intervals_over": name,
                "studies": studies,
                "with_a_false_verdict": false,
                "methods_equivalent": sum(verdict == "equivalent" for verdict, _ in every) / len(every),
                "methods_not_decided": sum(verdict == "not decided" for verdict, _ in every) / len(every),
                "intervals_with_the_truth": sum(holds for _, holds in every) / len(every),
            }
        )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    designs = ((12, 10, 0.5), (12, 10, 0.0), (30, 10, 0.5))
    rows = [row for design in designs for row in simulate(options.studies, *design)]
    options.out.write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        print(*(f"{value:.3g}" if isinstance(value, float) else value for value in row.values()))
