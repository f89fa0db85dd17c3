"""Videos in TensorBoard: written at every validation, readable, and without any effect on the run."""

import io

import pytest
from lightning import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structrl.envs import EnvConfig
from structrl.rl.data import RolloutData
from structrl.rl.module import PPO
from structrl.rl.videos import EpisodeVideos
from tests.imitation.conftest import toy  # noqa: F401 - a fixture
from tests.rl.toy_data import small_policy


def fit(folder, callbacks):
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        check_val_every_n_epoch=1,
        num_sanity_val_steps=0,
        logger=TensorBoardLogger(folder, name="", version="tensorboard"),
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    data = RolloutData(EnvConfig(["climb"], num_envs=4, chunk=4, sim={"dims": 2}), 4, 4, seed=0)
    trainer.fit(PPO(small_policy), datamodule=data)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_videos_of_every_validation(toy, tmp_path):  # noqa: F811
    filmed, plain = fit(tmp_path / "filmed", [EpisodeVideos(2)]), fit(tmp_path / "plain", [])
    assert plain.Tags()["images"] == []
    assert filmed.Tags()["images"] == ["evaluate/video/0", "evaluate/video/1"]
    steps = [event.step for event in filmed.Scalars("charts/episodic_length")]
    for tag in filmed.Tags()["images"]:
        events = filmed.Images(tag)
        assert [event.step for event in events] == steps
        with Image.open(io.BytesIO(events[-1].encoded_image_string)) as image:
            assert image.n_frames > 2 and image.size[0] > 16

    def curve(events):
        return [event.value for event in events.Scalars("losses/policy_loss")]

    assert curve(filmed) == curve(plain), "filming changed the training"


def test_no_episodes_are_a_mistake():
    with pytest.raises(ValueError, match="at least 1"):
        EpisodeVideos(0)
