import dataclasses
import json

import h5py
import numpy as np
import pytest

from structrl.evaluate.episodes import EpisodeFile, EpisodeFileError, EpisodeWriter, versions

from .example import TASK, episode

VALUES = [[1, 1, 0, 1], [-1, 1, 1, 1], [-1, -1, 0, 1], [-1, -1, 0, 0.05]]


def write(path, *episodes, **meta):
    with EpisodeWriter(path, meta) as out:
        for one in episodes:
            out.append(one)


def test_round_trip_is_exact(tmp_path):
    path = tmp_path / "sub" / "a.h5"
    with_nan = [[1, np.nan, 0, 1], [-1, 1, 1, np.nan]]
    first, second = episode(VALUES, obs_at=[0, 2, 3]), episode(with_nan, failed=True)
    write(path, first, second, seed=3)
    with EpisodeFile(path) as file:
        assert len(file) == 2
        assert file.meta == {"versions": versions(), "seed": 3}
        for want, got in zip((first, second), file, strict=True):
            assert got.task == want.task
            assert got.failed == want.failed
            assert got.atom_tests == want.atom_tests
            assert got.observation.keys() == want.observation.keys()
            for name in ("start", "actions", "holds", "success", "atoms", "atom_values", "obs_at"):
                a, b = getattr(got, name), getattr(want, name)
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b, err_msg=name)
            for name in got.observation:
                assert got.observation[name].dtype == want.observation[name].dtype
                np.testing.assert_array_equal(got.observation[name], want.observation[name])
        assert file[0].succeeded and not file[1].succeeded


def test_layout_is_readable_without_structrl(tmp_path):
    """What robomimic's tools and a stranger with h5py expect to find."""
    path = tmp_path / "a.h5"
    write(path, episode(VALUES))
    with h5py.File(path) as file:
        assert file["data"].attrs["total"] == 3
        demo = file["data/demo_0"]
        assert demo.attrs["num_samples"] == 3
        assert demo.attrs["task_text"] == TASK.source
        assert json.loads(demo.attrs["task_spec"])["name"] == "pack"
        assert demo["actions"].shape == (3, 2)
        assert demo["obs/images/wrist"].dtype == np.uint8


def test_long_task_text(tmp_path):
    task = dataclasses.replace(TASK, source="# " + "x" * 200_000)
    write(tmp_path / "a.h5", episode(VALUES, task))
    assert EpisodeFile(tmp_path / "a.h5")[0].task == task


def test_never_overwrites_silently(tmp_path):
    path = tmp_path / "a.h5"
    write(path, episode(VALUES))
    with pytest.raises(FileExistsError, match="--overwrite"):
        EpisodeWriter(path)
    assert len(EpisodeFile(path)) == 1
    EpisodeWriter(path, overwrite=True).close()
    assert len(EpisodeFile(path)) == 0


def test_a_folder_is_refused_before_the_work(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        EpisodeWriter(tmp_path, overwrite=True)


def test_unfinished_file(tmp_path):
    path = tmp_path / "a.h5"
    with pytest.raises(RuntimeError, match="stop"), EpisodeWriter(path) as out:
        out.append(episode(VALUES))
        raise RuntimeError("stop")
    assert not path.exists()
    with pytest.raises(EpisodeFileError, match=r"unfinished.*run it again"):
        EpisodeFile(tmp_path / "a.h5.part")
    write(path, episode(VALUES), episode(VALUES))  # the rest does not get in the way of the next attempt
    assert len(EpisodeFile(path)) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]


def test_open_and_cut_off_files(tmp_path):
    path = tmp_path / "a.h5"
    out = EpisodeWriter(path)
    out.append(episode(VALUES))
    with pytest.raises(EpisodeFileError, match=r"a\.h5\.part is"):  # still being written, by this process
        EpisodeFile(tmp_path / "a.h5.part")
    out.close()
    cut = tmp_path / "cut.h5"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(EpisodeFileError, match="cut off"):
        EpisodeFile(cut)


def test_other_files(tmp_path):
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(EpisodeFileError, match="no readable HDF5"):
        EpisodeFile(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_group("data")
    with pytest.raises(EpisodeFileError, match="format"):
        EpisodeFile(tmp_path / "other.h5")
    with pytest.raises(FileNotFoundError, match=r"none\.h5"):
        EpisodeFile(tmp_path / "none.h5")


def test_index_out_of_range(tmp_path):
    write(tmp_path / "a.h5", episode(VALUES))
    with pytest.raises(IndexError, match="holds 1 episodes, 0 to 0; asked for 1"):
        EpisodeFile(tmp_path / "a.h5")[1]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("holds", lambda a: a[:-1]),
        ("success", lambda a: a.astype(np.int8)),
        ("atoms", lambda a: a[:, :-1]),
        ("atom_values", lambda a: a.astype(np.float32)),
        ("start", lambda a: a[:5]),
        ("actions", lambda a: a.astype(np.float64)),
        ("obs_at", lambda a: a[::-1]),
        ("obs_at", lambda a: a + 1),
        ("obs_at", lambda a: a[:-1]),
    ],
)
def test_wrong_shapes_are_refused(tmp_path, name, change):
    bad = episode(VALUES)
    setattr(bad, name, change(getattr(bad, name)))
    with EpisodeWriter(tmp_path / "a.h5") as out, pytest.raises(ValueError, match="pack"):
        out.append(bad)
