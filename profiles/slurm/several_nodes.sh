#!/bin/bash
# One training on several nodes of a Slurm cluster, by hand: Ray on all of them for as long as it takes, by Ray's own command.
# NOT TRIED: the project has no cluster. Ask for as many nodes and GPUs as the run's cluster.json says:
#
#   python -m rlvr plan --config config/papers/delta.yaml
#   sbatch --nodes=2 --gpus-per-node=8 --exclusive profiles/slurm/several_nodes.sh \
#       results/runs/RUN/run.json /path/to/rlvr-verl/bin/python
#
# Ray asks for a token that all nodes know: `ray get-auth-token --generate` once, in a home directory that they share.
set -euo pipefail

run_file=$1
verl_python=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$head:6379"
export PATH="$(dirname "$verl_python"):$PATH" # `ray`, on every node

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    env RAY_ADDRESS="$address" python -m rlvr train "$run_file" --python "$verl_python"
