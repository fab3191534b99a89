# A study trained by verl: where its runs are carried out, and what it would cost.
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.study.cost import plan_lines


def run_cluster(wildcards):
    """Where a run by verl is carried out, as JSON."""
    return canonical_json(RUNS[wildcards.run][0].cluster(wildcards.run))


def run_machines(wildcards):
    """Machines that a run by verl is spread over."""
    return RUNS[wildcards.run][0].cluster(wildcards.run)["nodes"]


def run_gpus(wildcards):
    """GPUs that the job itself needs: none on several machines, whose Ray cluster has them and runs already."""
    cluster = RUNS[wildcards.run][0].cluster(wildcards.run)
    return cluster["gpus_per_node"] if cluster["platform"] == "cuda" and run_machines(wildcards) == 1 else 0


def run_ray_cluster(wildcards):
    """1 on several machines: their Ray cluster has room for one run at a time."""
    return int(run_machines(wildcards) > 1)


if STUDY.engine == "verl" and planning():
    print(*plan_lines(STUDY), sep="\n", file=sys.stderr)
