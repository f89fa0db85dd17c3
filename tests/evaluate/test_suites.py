from pathlib import Path

import pytest

from structrl.cli import main
from structrl.evaluate.report import rate
from structrl.evaluate.suites import HORIZONS, suite_starts, suite_tasks, suite_text, summarise_suite
from structrl.task import load_task


@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10"])
def test_tasks_come_in_the_benchmarks_order(suite):
    specs = [load_task(name) for name in suite_tasks(suite)]
    assert [spec.sim_args for spec in specs] == [{"suite": suite, "task": i} for i in range(10)]
    assert all(s.duration is not None for spec in specs for s in spec.subtasks)


def test_unknown_suites():
    with pytest.raises(ValueError, match=r"no suite 'libero_01'.*did you mean 'libero_10'"):
        suite_tasks("libero_01")
    with pytest.raises(ValueError, match="no suite 'tabletop' of a benchmark"):
        suite_tasks("tabletop")


def test_every_initial_state_once_with_noise_of_its_own():
    starts = suite_starts(3, 4, seed=5, iteration=1)
    assert [(s.task, s.init) for s in starts] == [(t, i) for t in range(3) for i in range(4)]
    assert len({s.seed for s in starts}) == 12 and all(s.seed[0] == 5 and s.seed[2] == 1 for s in starts)


def test_groups_are_disjoint_and_whole():
    assert sorted(row for rows in HORIZONS["libero_10"].values() for row in rows) == list(range(10))


def test_pooled_by_hand():
    tasks = {f"t{i}": {"success": rate(i, 10)} for i in range(10)}
    found = summarise_suite("libero_10", tasks)
    assert found["total"] == rate(45, 100)
    assert found["horizons"] == {"250-340": rate(20, 50), "340-400": rate(8, 30), "400-550": rate(17, 20)}
    lines = suite_text(found, tasks).splitlines()
    assert len(lines) == 14 and len({line.index("/") for line in lines}) == 1
    assert lines[-1].startswith("libero_10, all 10 tasks") and "45/100" in lines[-1]
    assert summarise_suite("libero_goal", tasks)["horizons"] == {}


def test_task_files_are_canonical_and_without_findings(capsys):
    files = sorted(str(path) for path in (Path(__file__).parents[2] / "tasks").glob("libero_*/*.task"))
    assert len(files) == 40
    assert main(["check", *files]) == 0
    assert "40 files: no errors" in (found := capsys.readouterr()).out + found.err
    assert "warning" not in found.out + found.err
    assert main(["fmt", "--check", *files]) == 0
