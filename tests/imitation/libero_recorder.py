"""Runs under LIBERO's Python: rollouts of the scripted expert, with what LIBERO's own files hold of them.

PYTHON libero_recorder.py TASK.json OUT.npz INIT...
"""

import sys
from pathlib import Path

import numpy as np

from structrl.lang.spec import TaskSpec
from structrl.sims.base import Start
from structrl.sims.libero import LiberoSimulator
from structrl.sims.libero.expert import LiberoExpert


def main(spec: str, out: str, *inits: str) -> None:
    task = TaskSpec.from_json(Path(spec).read_text())
    sim = LiberoSimulator([task], 1)
    expert, ids, found = LiberoExpert(sim), np.zeros(1, np.int64), {}
    for i, init in enumerate(inits):
        start = Start(0, int(init), (0,))
        sim.reset(ids, [start])
        expert.reset(ids, [start])
        states, actions, atoms = [], [], [sim.atoms(ids)[0]]
        while not sim.own_success(ids)[0] and len(actions) < task.horizon:
            data = sim.world(0)[1].data
            states.append(np.concatenate([[data.time], data.qpos, data.qvel]))
            actions.append(expert.act(ids)[0])
            sim.step(ids, actions[-1][None])
            atoms.append(sim.atoms(ids)[0])
        world = sim.world(0)[0]
        model = world.env.sim.model.get_xml()  # what LIBERO's collection script stores
        found |= {f"{i}.states": states, f"{i}.actions": actions, f"{i}.atoms": atoms, f"{i}.model": model}
        found[f"{i}.fixtures"], found["bddl"] = world.fixtures, world.task.bddl.name
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
