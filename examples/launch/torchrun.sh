#!/usr/bin/env bash
# Several machines, the same command on each. NODES and GPUS are their numbers, RANK is this machine's (0 ... NODES - 1),
# MAIN the address of machine 0, which the others must reach on PORT. The run folder must be on a shared file system.
#
#   NODES=4 GPUS=8 RANK=0 MAIN=10.0.0.1 examples/launch/torchrun.sh configs/quickstart.yaml [--KEY VALUE ...]
set -euo pipefail
: "${NODES:?number of machines}" "${GPUS:?GPUs of each}" "${RANK:?number of this machine}" "${MAIN:?address of machine 0}"
CONFIG=${1:?the YAML of the run}; shift
export OMP_NUM_THREADS=1 MUJOCO_GL=egl
exec torchrun --nnodes "$NODES" --nproc-per-node "$GPUS" --node-rank "$RANK" \
  --master-addr "$MAIN" --master-port "${PORT:-29500}" --no-python \
  structrl fit --config "$CONFIG" --config examples/launch/cluster.yaml \
  --trainer.num_nodes "$NODES" --trainer.devices "$GPUS" "$@"
