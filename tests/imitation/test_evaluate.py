"""From a trained run folder to a report: `structrl evaluate` end to end on the toy simulator."""

import json

import pytest
import yaml
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from structrl.evaluate.command import evaluate, main
from structrl.evaluate.episodes import EpisodeFile
from structrl.evaluate.run_config import config_of, read_config
from structrl.imitation import demos
from structrl.imitation.data import DemoData
from structrl.imitation.flow_matching import FlowMatching, SFTOptions
from structrl.policies.compact import CompactVLA

POLICY = {"class_path": "structrl.policies.compact.CompactVLA", "init_args": {"width": 32, "depth": 1}}
ENV = {"tasks": ["climb"], "num_envs": 8, "chunk": 4, "sim": {"dims": 2}}


@pytest.fixture
def run(toy, tmp_path):
    """A run folder of supervised learning, not trained to the end."""
    path, folder = tmp_path / "d.h5", tmp_path / "run"
    assert demos.main(["climb", "--episodes", "6", "--slop", "0", "--out", str(path)]) == 0
    config = {
        "model": {"class_path": "structrl.imitation.FlowMatching", "init_args": {"policy": POLICY}},
        "data": {"class_path": "structrl.imitation.DemoData", "init_args": {"env": ENV, "demos": [str(path)]}},
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(dirpath=folder / "checkpoints", save_last=True, save_on_train_epoch_end=True)],
    )
    module = FlowMatching(policy=lambda spec: CompactVLA(spec, width=32, depth=1), sft=SFTOptions(lr=0.003, warmup=1))
    data = DemoData(read_config(folder / "config.yaml").env, [str(path)], batch_size=8, steps_per_epoch=3, seed=0)
    trainer.fit(module, datamodule=data)
    return folder / "checkpoints" / "last.ckpt"


def test_same_command_same_numbers(run):
    first = evaluate(run, 12, 0, progress=False)
    assert evaluate(run, 12, 0, progress=False) == first
    assert evaluate(run, 12, 0, num_envs=5, progress=False) == first, "depends on the number of environments"
    other = evaluate(run, 12, 1, progress=False)
    assert other["tasks"] != first["tasks"], "the seed changes nothing"


def test_videos_show_failures_and_successes(run, tmp_path):
    av = pytest.importorskip("av")

    report = evaluate(run, 12, 0, progress=False)
    filmed = evaluate(run, 12, 0, video=tmp_path / "v", video_episodes=3, progress=False)
    assert filmed == report, "filming changed what was measured"
    videos = sorted((tmp_path / "v").iterdir())
    assert len(videos) == 3 and all(path.suffix == ".mp4" for path in videos)
    successes = report["tasks"]["climb"]["success"]["k"]
    assert any("success" in path.name for path in videos) == (successes > 0)
    assert any("failure" in path.name for path in videos) == (successes < 12)
    for path in videos:
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert 10 < len(frames) <= 20 + 1 + 10  # horizon, reset, and the last second at 10 Hz
        assert (frames[0] != frames[-1]).any()


def test_videos_need_a_simulator_with_pictures(run, tmp_path, monkeypatch):
    pytest.importorskip("av")
    monkeypatch.setattr("tests.toy.ToySimulator.film", {})
    with pytest.raises(ValueError, match="'toy' makes no pictures"):
        evaluate(run, 2, 0, video=tmp_path, progress=False)


def test_counts_are_those_of_the_episodes(run, tmp_path):
    report = evaluate(run, 10, 0, save_episodes=tmp_path / "e.h5", progress=False)
    with EpisodeFile(tmp_path / "e.h5") as file:
        episodes, meta = list(file), file.meta
    assert meta["chunk"] == 4 and meta["reward"]["beta"] == 0.6
    task = report["tasks"]["climb"]
    assert task["success"]["k"] == sum(e.succeeded for e in episodes) and task["success"]["n"] == len(episodes) == 10
    assert task["mean_length"] == pytest.approx(sum(e.length for e in episodes) / 10)
    reached = sum(bool(e.holds[:, 0].any()) for e in episodes)  # s0 has no prerequisite
    assert task["subtasks"]["s0"]["completed"]["k"] == reached
    # starts of their own: stream EVALUATE, iteration 1
    assert [e.start.tolist() for e in episodes] == [[0, -1, 0, 5, 1, i] for i in range(10)]


def test_env_from_changes_the_world_but_not_the_policy(run, tmp_path):
    other = tmp_path / "rl.yaml"
    env = {**ENV, "sim": {"dims": 2, "shift": 0.5}, "num_envs": 3}
    model = {"class_path": "x", "init_args": {"policy": {**POLICY, "init_args": {"width": 8}}}}
    other.write_text(yaml.safe_dump({"model": model, "data": {"init_args": {"env": env}}}))
    report = evaluate(run, 6, 0, env_from=other, progress=False)
    assert {key: report["config"]["env"][key] for key in env} == env
    assert report["config"]["env"]["reward"]["beta"] == 0.6
    assert report["config"]["policy"] == POLICY


def test_command(run, tmp_path, capsys):
    out = tmp_path / "out" / "a.json"
    arguments = ["--checkpoint", str(run), "--episodes", "8"]
    assert main([*arguments, "--output", str(out)]) == 0
    said = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert f"{report['tasks']['climb']['success']['k']}/8" in said
    assert report["checkpoint"] == str(run) and report["seed"] == 0 and report["versions"]["structrl"]
    assert main([*arguments, "--compare", str(out)]) == 0
    said = capsys.readouterr().out
    assert "intervals overlap" in said and "the same starts in both" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model"]["init_args"]["policy"]["init_args"].update(width=33), "holds another policy"),
        (lambda c: c["model"]["init_args"]["policy"]["init_args"].update(widht=33), "widht"),
        (lambda c: c["data"]["init_args"]["env"].update(chunks=3), "chunks"),
        (lambda c: c["data"]["init_args"].pop("env"), "no config of structrl fit"),
    ],
)
def test_wrong_configs(run, capsys, change, message):
    path = run.parent.parent / "config.yaml"
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config))
    assert main(["--checkpoint", str(run), "--episodes", "2"]) == 1
    assert message in capsys.readouterr().err


def test_no_checkpoint_says_what_there_is(run):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*none\.ckpt; in .* there are: .*last\.ckpt"):
        config_of(run.parent / "none.ckpt")
    (run.parent.parent / "config.yaml").rename(run.parent.parent / "moved.yaml")
    with pytest.raises(FileNotFoundError, match=r"no config\.yaml beside"):
        config_of(run)


def test_shipped_config_builds_its_policy():
    from structrl.resources import folder

    config = read_config(folder("configs") / "tabletop" / "sft.yaml")
    assert config.env.tasks == ["tasks/tabletop/pack_lunch.task"]
    assert config.env.chunk == 8


def test_a_config_that_is_no_yaml(tmp_path):
    path = tmp_path / "config.yaml"
    for content in (b"model: [", b"\x89HDF\xff"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"config\.yaml is no YAML"):
            read_config(path)


@pytest.mark.parametrize("argv", [["--seed=-3"], ["--output", "."]])
def test_wrong_usage(run, argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--checkpoint", str(run), "--episodes", "2", *argv])
    assert stop.value.code == 2
    assert argv[0].split("=")[0] in capsys.readouterr().err


def test_a_suite_starts_from_every_stored_state(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("structrl.evaluate.command.suite_tasks", lambda suite: ["climb"])
    out = tmp_path / "suite.json"
    episodes = tmp_path / "e.h5"
    command = ["--checkpoint", str(run), "--suite", "libero_object", "--episodes", "5"]
    assert main([*command, "--output", str(out), "--save-episodes", str(episodes)]) == 0
    report = json.loads(out.read_text())
    assert report["suite"]["total"] == report["tasks"]["climb"]["success"] and report["suite"]["total"]["n"] == 5
    assert "libero_object, all 1 tasks" in capsys.readouterr().out
    with EpisodeFile(episodes) as file:
        assert sorted(int(episode.start[1]) for episode in file) == [0, 1, 2, 3, 4]
    assert main([*command[:-1], "51"]) == 1
    assert "has 50 initial states" in capsys.readouterr().err
