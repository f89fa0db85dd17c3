"""A toy that fails as told: an argument says in which episode, in which phase and how."""

import os
import signal
import sys

from tests.toy import ToySimulator


class FaultySimulator(ToySimulator):
    """`faults`: episode number -> [phase, kind], phase `reset`, `step` (the third one) or `observe`."""

    def __init__(self, tasks, num_envs, dims: int = 2, faults: dict | None = None, broken: bool = False):
        if broken:
            raise RuntimeError("no such thing as a renderer")
        super().__init__(tasks, num_envs, dims)
        self.faults = faults or {}
        print("a simulator says hello")

    def _maybe(self, phase, ids):
        for i in ids:
            wanted, kind = self.faults.get(str(self.starts[i].seed[3]), (None, None))
            if wanted == phase and (phase != "step" or self.time[i] == 3):
                fail(kind)

    def reset(self, ids, starts):
        super().reset(ids, starts)
        self._maybe("reset", ids)

    def step(self, ids, action):
        super().step(ids, action)
        self._maybe("step", ids)

    def observe(self, ids):
        self._maybe("observe", ids)
        return super().observe(ids)

    def state(self, ids):
        return {k: v for k, v in super().state(ids).items() if k != "start"}


def fail(kind):
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise ZeroDivisionError("the gripper is gone")
        case "exit":
            sys.exit("enough")
        case "corrupt":
            os.write(int(sys.argv[2]), b"\0\0\0\x05\0\0\0\0\0\0\0\0[1,2]")
        case "huge":
            os.write(int(sys.argv[2]), b"\xff" * 64)


class PushExpert:
    """Pushes every axis by an amount that the episode says."""

    def __init__(self, simulator, slop):
        self.sim, self.slop = simulator, slop

    def reset(self, ids, starts):
        for i, start in zip(ids, starts, strict=True):
            self.sim.starts[i] = start

    def act(self, ids):
        import numpy as np

        amount = np.array([self.sim.starts[i].seed[3] / 10 + self.slop for i in ids], np.float32)
        return np.repeat(amount[:, None], 2, 1)
