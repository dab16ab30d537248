#!/usr/bin/env bash
# Trains on 2 hosts with 4 GPUs each, one process a GPU: sbatch slurm.sh
#SBATCH --job-name=jaxgraph
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --output=jaxgraph-%j.out
set -euo pipefail

# Written before, once: jaxgraph partition --dataset ... --parts 8 --out "$PARTS"
# All hosts see this folder.
PARTS="${PARTS:-$HOME/parts}"

# jax reads from SLURM who the processes are. `jaxgraph launch` watches its process on each host, and
# --kill-on-bad-exit ends all when one of them ends.
srun --kill-on-bad-exit=1 \
    jaxgraph launch --step-timeout 600 -- \
    train --partition "$PARTS" --model sage --epochs 200 --json run.json --process-log logs \
    --checkpoint run --resume
