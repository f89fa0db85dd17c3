#!/usr/bin/env bash
# Two "nodes" of one rank each in two network namespaces that a virtual cable joins: ranks that meet over a network, not
# on the loopback. Needs root and iproute2. Trains on the toy simulator of the tests with ddp and with fsdp2, and
# compares the weights with those of two ranks on the loopback.
#
#   scripts/two_namespaces.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
WORK=$(mktemp -d)
A=structrl_a_$$ B=structrl_b_$$
export OMP_NUM_THREADS=1
cleanup() { ip netns del "$A" 2>/dev/null || true; ip netns del "$B" 2>/dev/null || true; rm -rf "$WORK"; }
trap cleanup EXIT
ip netns add "$A"
ip netns add "$B"
ip link add veth_a netns "$A" type veth peer name veth_b netns "$B"
ip -n "$A" addr add 10.77.0.1/24 dev veth_a
ip -n "$B" addr add 10.77.0.2/24 dev veth_b
for pair in "$A veth_a" "$B veth_b"; do
  read -r namespace cable <<< "$pair"
  ip -n "$namespace" link set lo up
  ip -n "$namespace" link set "$cable" up
done

config() {  # folder
  "$PYTHON" -c "
import sys, pathlib
from tests.rl.test_ranks import write
print(' '.join(write(pathlib.Path(sys.argv[1]), 3)))" "$1"
}

node() {  # namespace cable rank strategy arguments...
  local namespace=$1 cable=$2 rank=$3 strategy=$4; shift 4
  ip netns exec "$namespace" env MASTER_ADDR=10.77.0.1 MASTER_PORT=29517 NODE_RANK="$rank" GLOO_SOCKET_IFNAME="$cable" \
    "$PYTHON" -m structrl.cli "$@" --trainer.num_nodes=2 --trainer.devices=1 --trainer.strategy="$strategy"
}

local_node() {  # rank strategy arguments...
  local rank=$1 strategy=$2; shift 2
  MASTER_ADDR=127.0.0.1 MASTER_PORT=29518 NODE_RANK="$rank" \
    "$PYTHON" -m structrl.cli "$@" --trainer.num_nodes=2 --trainer.devices=1 --trainer.strategy="$strategy"
}

for strategy in ddp fsdp2; do
  read -ra there <<< "$(config "$WORK/there_$strategy")"
  node "$B" veth_b 1 "$strategy" "${there[@]}" > "$WORK/log" 2>&1 & other=$!
  node "$A" veth_a 0 "$strategy" "${there[@]}" >> "$WORK/log" 2>&1 && wait "$other" || { cat "$WORK/log"; exit 1; }
  read -ra here <<< "$(config "$WORK/here_$strategy")"
  local_node 1 "$strategy" "${here[@]}" > "$WORK/log" 2>&1 & other=$!
  local_node 0 "$strategy" "${here[@]}" >> "$WORK/log" 2>&1 && wait "$other" || { cat "$WORK/log"; exit 1; }
  "$PYTHON" -c "
import sys, torch
one, two = (torch.load(f'{sys.argv[1]}/{name}_$strategy/rank-0.pt', weights_only=True) for name in ('there', 'here'))
worst = max(float((a[k] - b[k]).abs().max()) for a, b in zip(one['weights'], two['weights'], strict=True) for k in a)
print(f'$strategy: two namespaces against the loopback, largest difference of a weight after three updates: {worst:.2g}')
sys.exit(worst > 1e-6)" "$WORK"
done
