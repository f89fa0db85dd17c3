"""torchrun's and Slurm's ways of starting ranks give what Lightning's own gives; the examples' configs fit together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.rl.spy import free_port, start, start_nodes
from tests.rl.test_ranks import finish, write

ROOT = Path(__file__).resolve().parents[2]
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]


def torchrun(argv):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}",
        "--no-python", sys.executable, "-m", "structrl.cli",
    ]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen([*command, *argv, *TWO], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)]


def slurm(argv):
    """Processes with the variables that srun gives to two tasks on one node."""
    job = {
        "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
        "SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    return [start([*argv, *TWO], SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **job) for rank in range(2)]


@pytest.mark.heavy
@pytest.mark.parametrize("launch", [torchrun, slurm])
def test_whoever_starts_the_ranks(launch, tmp_path):
    codes, said = finish(start_nodes(write(tmp_path / "nodes", 3, iterations=2)))
    assert codes == [0, 0], said
    codes, said = finish(launch(write(tmp_path / "other", 3, iterations=2)))
    assert not any(codes), said
    one, two = (torch.load(tmp_path / name / "rank-0.pt", weights_only=True) for name in ("nodes", "other"))
    for a, b in zip(one["weights"], two["weights"], strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_cluster_config_goes_on_top_of_a_runs_own():
    configs = ["--config", "configs/quickstart.yaml", "--config", "examples/launch/cluster.yaml"]
    command = [sys.executable, "-m", "structrl.cli", "fit", *configs, "--trainer.accelerator", "cpu", "--print_config"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(done.stdout)
    assert merged["trainer"]["num_nodes"] == 4 and merged["trainer"]["max_epochs"] == 30
    env = merged["data"]["init_args"]["env"]
    assert env["overlap"] and env["workers"] == 16 and env["sim"] == {"shift": {"object_bias": [0.01, 0.01]}}
    assert merged["data"]["init_args"]["episodes_per_iteration"] % 32 == 0


@pytest.mark.parametrize("script", ["one_node.sh", "torchrun.sh", "slurm.sbatch"])
def test_scripts_say_what_they_need(script):
    path = ROOT / "examples/launch" / script
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0 and ("number of machines" in done.stderr or "the YAML of the run" in done.stderr)
