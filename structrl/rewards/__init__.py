"""Structured reward: pure functions on tensors, and the TorchRL transform that carries their state."""

from structrl.rewards.options import RewardOptions
from structrl.rewards.score import EpisodeScore, score_episode
from structrl.rewards.transform import StructuredReward

__all__ = ["EpisodeScore", "RewardOptions", "StructuredReward", "score_episode"]
