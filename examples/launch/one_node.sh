#!/usr/bin/env bash
# One machine, all its GPUs. Lightning starts a process for each; Ctrl-C or SIGTERM ends them all.
#
#   examples/launch/one_node.sh configs/quickstart.yaml --trainer.default_root_dir runs/mine
set -euo pipefail
CONFIG=${1:?the YAML of the run}; shift
export OMP_NUM_THREADS=1 MUJOCO_GL=egl
exec structrl fit --config "$CONFIG" --config examples/launch/cluster.yaml --trainer.num_nodes 1 --trainer.devices auto "$@"
