"""Online reinforcement learning: rollouts, advantages, losses and the Lightning modules."""
