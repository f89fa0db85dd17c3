"""A gymnasium environment that reports its atoms: walk a corridor to the door, and open it by waiting there."""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    metadata = {"render_modes": [], "render_fps": 5}  # noqa: RUF012 - as gymnasium has it
    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.waited = self.np_random.uniform(-0.5, 0.5), 0
        return self.report()[0], self.report()[1]

    def step(self, action):
        self.place = float(np.clip(self.place + 0.2 * action[0], -2, 2))
        self.waited = self.waited + 1 if self.place > 1 else 0
        observation, info = self.report()
        return observation, 0.0, info["success"], False, info

    def report(self):
        atoms = {"reached(door)": self.place > 1, "opened(door)": self.waited >= 3}
        observation = np.array([self.place, self.waited / 3], np.float32)
        return observation, {"atoms": atoms, "success": atoms["opened(door)"]}

    def get_state(self):
        return {"place": np.array(self.place), "waited": np.array(self.waited)}

    def set_state(self, state):
        self.place, self.waited = float(state["place"]), int(state["waited"])


gymnasium.register("Corridor-v0", Corridor)
