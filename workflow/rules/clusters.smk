# A study trained by verl: where its runs are carried out, and what it would cost.
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.cost import plan_lines


def run_cluster(wildcards):
    """Where a run by verl is carried out, as JSON."""
    return canonical_json(RUNS[wildcards.run][0].cluster(wildcards.run))


def run_nodes(wildcards):
    """Machines that a run by verl takes."""
    return RUNS[wildcards.run][0].cluster(wildcards.run)["nodes"]


def run_gpus(wildcards):
    """GPUs of each of them."""
    cluster = RUNS[wildcards.run][0].cluster(wildcards.run)
    return cluster["gpus_per_node"] if cluster["platform"] == "cuda" else 0


if STUDY.engine == "verl" and planning():
    print(*plan_lines(STUDY), sep="\n", file=sys.stderr)
