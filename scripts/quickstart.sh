#!/usr/bin/env bash
# The main job, step by step, with the commands a user would type. An interrupted quickstart continues where it was;
# `rm -r runs/quickstart` starts afresh.
set -euo pipefail
structrl=$1 task=$2 run=$3
step() { printf '\n\033[1m[%s] %s\033[0m\n' "$(date +%H:%M:%S)" "$1"; shift; echo "  \$ structrl $*"; "$structrl" "$@"; }
fit() { # TITLE CONFIG FOLDER: a run that was interrupted is continued, a finished one is left as it is
    step "$1" fit --config "$2" $([ -e "$3/checkpoints/last.ckpt" ] && echo --resume)
    # a fit that was told to stop exits 0: go on only if its last checkpoint is there
    local epochs; epochs=$(sed -n 's/^  max_epochs: //p' "$3/config.yaml")
    [ -e "$3/checkpoints/$(printf 'epoch-%05d.ckpt' $((epochs - 1)))" ] ||
        { echo "stopped before the end; \`make quickstart\` continues"; exit 1; }
}
mkdir -p "$run"

step "1/6 check the task file" check "$task"
[ -e "$run/demos.h5" ] ||
    step "2/6 demonstrations by a slightly sloppy scripted expert" demos "$task" --episodes 384 --slop 0.007 --out "$run/demos.h5"
fit "3/6 warm start: supervised flow matching" configs/tabletop/sft.yaml "$run/sft"
[ -e "$run/before.json" ] ||
    step "4/6 success before RL, in the shifted world that RL will train in" evaluate \
        --checkpoint "$run/sft/checkpoints/last.ckpt" --env-from configs/quickstart.yaml --episodes 200 --output "$run/before.json"
fit "5/6 PPO on the structured reward" configs/quickstart.yaml "$run/ppo"
step "6/6 success after RL, on the same 200 starts" evaluate \
    --checkpoint "$run/ppo/checkpoints/last.ckpt" --episodes 200 --output "$run/after.json" --compare "$run/before.json"

printf '\nDone in %d min %d s. To watch every subtask being learned:\n  %s --logdir %s\n' \
    $((SECONDS / 60)) $((SECONDS % 60)) "$(dirname "$structrl")/tensorboard" "$run"
