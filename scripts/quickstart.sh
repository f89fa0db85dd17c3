#!/usr/bin/env bash
# The main job, step by step, with the commands a user would type. A finished step is not repeated, so an interrupted
# quickstart continues where it was; `rm -r runs/quickstart` starts afresh.
set -euo pipefail
structrl=$1 task=$2 run=$3
step() { printf '\n\033[1m[%s] %s\033[0m\n' "$(date +%H:%M:%S)" "$1"; shift; echo "  \$ structrl $*"; "$structrl" "$@"; }
SECONDS=0
mkdir -p "$run"

step "1/6 check the task file" check "$task"
[ -e "$run/demos.h5" ] ||
    step "2/6 demonstrations from a slightly sloppy scripted expert" demos "$task" --episodes 384 --slop 0.007 --out "$run/demos.h5"
[ -e "$run/sft/done" ] || {
    step "3/6 warm start: supervised flow matching" fit --config configs/tabletop/sft.yaml --resume
    touch "$run/sft/done"
}
[ -e "$run/before.json" ] ||
    step "4/6 success before RL, in the shifted world that RL will train in" evaluate \
        --checkpoint "$run/sft/checkpoints/last.ckpt" --env-from configs/quickstart.yaml --episodes 200 --output "$run/before.json"
[ -e "$run/rl/done" ] || {
    step "5/6 PPO on the structured reward" fit --config configs/quickstart.yaml --resume
    touch "$run/rl/done"
}
step "6/6 success after RL, on the same 200 starts" evaluate \
    --checkpoint "$run/rl/checkpoints/last.ckpt" --episodes 200 --output "$run/after.json" --compare "$run/before.json"

printf '\nDone in %d min %d s. Every subtask being learned:\n  %s --logdir %s\n' \
    $((SECONDS / 60)) $((SECONDS % 60)) "$(dirname "$structrl")/tensorboard" "$run"
