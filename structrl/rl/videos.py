"""Videos of evaluation episodes in TensorBoard, under Images."""

import dataclasses
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import Summary

from structrl.evaluate.replay import film, select
from structrl.evaluate.video import annotate, gif, pictures
from structrl.rl.rollout import Episodes


class EpisodeVideos(Callback):
    """After every evaluation, runs some of its episodes again with a camera; subtasks and credit beside the picture.

    Put it under `trainer.callbacks` of a config. TensorBoard shows them as moving images, `evaluate/video/0`, ...

    Args:
        episodes: how many, failures among them.

    Raises:
        ValueError: fewer than one episode.
    """

    def __init__(self, episodes: int = 2):
        if episodes < 1:
            raise ValueError(f"videos of {episodes} episodes: at least 1, or leave the callback out")
        self.episodes = episodes

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Film and write the episodes of this validation."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not (trainer.is_global_zero and loggers):
            return
        _, done, *_ = args
        data = cast(Any, trainer).datamodule
        rows, reward = select(cast(Episodes, done), self.episodes), dataclasses.asdict(data.env.reward.resolved())
        fps = data.environment.simulator.control_hz
        for i, (row, episode) in enumerate(zip(rows, film(data.env, done, rows), strict=True)):
            frames = annotate(episode, pictures(episode), reward, data.env.chunk, f"episode {row}, {episode.task.name}")
            image = Summary.Image(
                height=frames.shape[1], width=frames.shape[2], colorspace=3, encoded_image_string=gif(frames, fps)
            )
            summary = Summary(value=[Summary.Value(tag=f"evaluate/video/{i}", image=image)])
            for logger in loggers:
                logger.experiment._get_file_writer().add_summary(summary, cast(Any, pl_module).env_steps)
