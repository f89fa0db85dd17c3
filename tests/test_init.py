import pytest
import yaml

from structrl import init


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A checkout's `configs/` and `tasks/`, small."""
    root = tmp_path / "checkout"
    for path, text in {
        "configs/quickstart.yaml": "# my tasks\ndata:\n  env:\n    tasks: [kit/pack, kit/pack_two]  # kit/pack first\n",
        "configs/kit/sft.yaml": "data:\n  init_args:\n    env:\n      tasks:\n        - tasks/kit/pack.task\n"
        "    demos: [d.h5]\n",
        "configs/kit/bad.yaml": "tasks: [kit/none]\n",
        "tasks/kit/pack.task": "task pack\n",
        "tasks/kit/pack_two.task": "task pack_two\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    monkeypatch.setattr(init, "folder", lambda name: root / name)
    return tmp_path / "project"


def test_config_and_tasks_are_copied_and_point_to_each_other(shipped, capsys):
    assert init.main([str(shipped), "--config", "quickstart"]) == 0
    config = (shipped / "quickstart.yaml").read_text()
    assert config.startswith("# my tasks\n")
    tasks = yaml.safe_load(config)["data"]["env"]["tasks"]
    assert tasks == ["tasks/kit/pack.task", "tasks/kit/pack_two.task"]
    assert [(shipped / task).read_text() for task in tasks] == ["task pack\n", "task pack_two\n"]
    assert capsys.readouterr().out.endswith(
        f"Next:\n  cd {shipped}\n  structrl check tasks/kit/pack.task\n  structrl check tasks/kit/pack_two.task\n"
        "  structrl fit --config quickstart.yaml\n"
    )


def test_several_configs_and_what_to_run_in_which_order(shipped, capsys):
    assert init.main([str(shipped), "--config", "kit/sft", "quickstart"]) == 0
    data = yaml.safe_load((shipped / "sft.yaml").read_text())
    assert data == {"data": {"init_args": {"env": {"tasks": ["tasks/kit/pack.task"]}, "demos": ["d.h5"]}}}
    commands = capsys.readouterr().out.split("structrl check tasks/kit/pack_two.task\n")[1].split("\n")
    assert [command.strip() for command in commands if command] == [
        "structrl demos tasks/kit/pack.task --episodes 384 --out d.h5",
        "structrl fit --config sft.yaml",
        "structrl fit --config quickstart.yaml",
    ]


def test_never_overwrites(shipped, capsys):
    (shipped / "tasks/kit").mkdir(parents=True)
    (shipped / "tasks/kit/pack.task").write_text("mine")
    assert init.main([str(shipped), "--config", "quickstart"]) == 1
    assert "already has tasks/kit/pack.task; nothing was written" in capsys.readouterr().err
    assert (shipped / "tasks/kit/pack.task").read_text() == "mine"
    assert not (shipped / "quickstart.yaml").exists()


def test_the_folder_is_a_file(shipped, capsys):
    shipped.write_text("mine")
    assert init.main([str(shipped), "--config", "quickstart"]) == 1
    assert "is a file; choose another folder" in capsys.readouterr().err
    assert shipped.read_text() == "mine"


def test_unknown_config_lists_what_there_is(shipped, capsys):
    assert init.main([str(shipped), "--config", "quikstart"]) == 2
    assert "no config 'quikstart'; there are: kit/bad, kit/sft, quickstart" in capsys.readouterr().err


def test_config_with_an_unshipped_task(shipped, capsys):
    assert init.main([str(shipped), "--config", "kit/bad"]) == 2
    assert "kit/none" in capsys.readouterr().err


def test_the_shipped_default(tmp_path):
    """Config, tasks and order of `make quickstart`; every copied config names copied tasks only."""
    assert init.main([str(tmp_path)]) == 0
    configs = sorted(path.name for path in tmp_path.glob("*.yaml"))
    assert configs == ["quickstart.yaml", "sft.yaml"]
    for name in configs:
        entries = init.task_entries(yaml.safe_load((tmp_path / name).read_text()))
        assert entries and all((tmp_path / entry).is_file() for entry in entries)
