#!/bin/bash
# Trains a recipe on two machines of four GPUs: sbatch slurm.sh, also to continue.
#SBATCH --job-name=wt103
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300

export STEADEQ_DATA=/shared/data
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m steadeq train wikitext103-deq-post-jr --parallel fsdp --resume --out /shared/runs/wt103
