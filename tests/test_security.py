"""What comes from a disk or a wire is data: no code is run from it. docs/security.md says what is trusted."""

import ast
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PICKLE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
LOADERS = {"load", "loads", "Unpickler", "open"}
# file, call: why it is no door
ALLOWED = {
    ("structrl/sims/libero/suite.py", "compile"): "robosuite's own settings, a file of the installed package",
    ("structrl/sims/libero/suite.py", "exec"): "the same",
}


def name_of(node):
    """`a.b.c` of an attribute chain, "" for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*reversed([*parts, node.id])]) if isinstance(node, ast.Name) else ""


def doors(source):
    """(line, call) of every call that could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        module, _, function = name.rpartition(".")
        given = {k.arg: k.value for k in node.keywords}

        def is_(key, value, given=given):
            return isinstance(given.get(key), ast.Constant) and given[key].value is value

        if (
            name in ("eval", "exec", "compile", "__import__")
            or (module in PICKLE and function in LOADERS)
            or (module == "os" and function in ("system", "popen"))
            or ("shell" in given and not is_("shell", False))
            or function in ("getoutput", "getstatusoutput")
            or (name == "torch.load" and not is_("weights_only", True))
            or (function == "load" and module in ("np", "numpy") and "allow_pickle" in given)
            or (module == "yaml" and function.endswith(("load", "load_all")) and not function.startswith("safe"))
            or function == "load_from_checkpoint"
            or (
                function in ("fit", "validate", "test") and module.endswith("trainer") and not is_("weights_only", True)
            )
        ):
            yield node.lineno, name


def test_nothing_in_structrl_runs_what_it_reads():
    found = {}
    for file in sorted((ROOT / "structrl").rglob("*.py")):
        for line, name in doors(file.read_text()):
            found.setdefault((str(file.relative_to(ROOT)), name), []).append(line)
    assert not {k: v for k, v in found.items() if k not in ALLOWED}
    assert not [k for k in ALLOWED if k not in found], "an exception that nobody needs any more"


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)", "exec(x)", "pickle.load(f)", "pickle.loads(b)", "os.system(x)", "subprocess.run(x, shell=True)",
        "subprocess.getoutput(x)", "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p, allow_pickle=1)",
        "yaml.load(t)", "yaml.unsafe_load(t)", "yaml.full_load(t)", "PPO.load_from_checkpoint(p)",
        "cli.trainer.fit(model)", "subprocess.run(x, shell=flag)",
    ],
)  # fmt: skip
def test_the_search_finds(source):
    assert list(doors(source))


@pytest.mark.parametrize(
    "source",
    ["torch.load(p, weights_only=True)", "yaml.safe_load(t)", "np.load(p)", "policy.eval()", "subprocess.run(x)",
     "re.compile(x)", "cli.trainer.fit(model, weights_only=True)"],
)  # fmt: skip
def test_the_search_leaves_alone(source):
    assert not list(doors(source))


class Exploit:
    """Unpickled, it makes a folder."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


CONFIG = """
trainer: {default_root_dir: RUN, max_epochs: 1, accelerator: cpu}
model: {class_path: structrl.rl.module.PPO}
data: {class_path: tests.rl.toy_data.ToyData, init_args: {num_envs: 2, episodes_per_iteration: 2, evaluate_episodes: 0}}
"""


def fit(tmp_path, *argv, config=CONFIG):
    from structrl.rl import cli

    (tmp_path / "c.yaml").write_text(config.replace("RUN", str(tmp_path / "run")))
    return cli.fit(["--config", str(tmp_path / "c.yaml"), *argv])


def test_checkpoints_are_weights_and_nothing_else(tmp_path, capsys):
    """A checkpoint that holds code is refused by every command that reads one, and the code does not run."""
    from structrl.evaluate import command

    proof = tmp_path / "proof"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    evil = tmp_path / "run" / "checkpoints" / "last.ckpt"
    torch.save({"state_dict": Exploit(proof), "epoch": 0, "global_step": 1, "structrl": {"env_steps": 1}}, evil)
    assert fit(tmp_path, "--resume") != 0
    assert fit(tmp_path, f"--model.warm_start={evil}", f"--trainer.default_root_dir={tmp_path / 'other'}") != 0
    try:
        code = command.main(["--checkpoint", str(evil), "--episodes", "1"])
    except (SystemExit, Exception) as error:
        code = error
    assert code != 0
    assert not proof.exists()
    torch.load(evil, weights_only=False)  # the exploit is one
    assert proof.exists()


def test_yaml_makes_no_objects(tmp_path, capsys):
    proof = tmp_path / "proof"
    assert fit(tmp_path, config=CONFIG + f"\nextra: !!python/object/apply:os.mkdir ['{proof}']\n") == 2
    assert not proof.exists()
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"!!python/object/apply:os.mkdir ['{proof}']\n")
    from structrl.rl import cli

    assert cli.fit(["--resume", str(run)]) == 2
    assert not proof.exists()


def test_hdf5_objects_are_not_unpickled(tmp_path):
    """HDF5 can hold pickled bytes as opaque data only; what reads them as an array gets bytes, and numpy refuses."""
    import pickle

    proof = tmp_path / "proof"
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["actions"] = np.void(pickle.dumps(Exploit(proof)))
        assert isinstance(file["actions"][()], np.void)
    np.save(tmp_path / "a.npy", np.array([Exploit(proof)], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        np.load(tmp_path / "a.npy")
    assert not proof.exists()


def test_a_task_file_runs_nothing(tmp_path):
    from structrl.task import parse_task

    proof = tmp_path / "proof"
    for text in (f'add(__import__("os").mkdir("{proof}"), box)', "add({{7*7}}, box)"):
        with pytest.raises(ValueError):
            parse_task(text)
    name = f"$(mkdir {proof})"  # a quoted name is a name, whatever it holds
    assert parse_task(f'add(apple, "{name}")').atoms[0].args[1] == name
    assert not proof.exists()
