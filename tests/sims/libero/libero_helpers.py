"""Tasks straight from LIBERO's goals, and bodies put into states where goals hold."""

import numpy as np

from structrl.lang.spec import AtomSpec, SubtaskSpec, TaskSpec
from structrl.sims.libero.predicates import OWN
from structrl.sims.libero.suite import find_task

WORDS = {theirs: ours for ours, theirs in OWN.items()}
SIZES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
ALL = [(suite, index) for suite, size in SIZES.items() for index in range(size)]


def goal(suite, index):
    """LIBERO's goal, [["on", "moka_pot_1", "flat_stove_1_cook_region"], ...]."""
    task = find_task(suite, index)  # imports LIBERO without side effects, so before anything of LIBERO's
    from libero.libero.envs.bddl_utils import robosuite_parse_problem

    return robosuite_parse_problem(str(task.bddl))["goal_state"]


def spec(suite="libero_10", index=2, atoms=None, horizon=400, hold=0):
    """One subtask per atom, by default the goal's; `hold` wraps each in `for N steps`. Success is LIBERO's own."""
    if atoms is None:
        atoms = [AtomSpec(WORDS[name], tuple(args)) for name, *args in goal(suite, index)]
    after = [("for", hold)] if hold else []
    subtasks = [SubtaskSpec(f"s{a}", str(atom), (("atom", a), *after)) for a, atom in enumerate(atoms)]
    return TaskSpec(
        name=f"{suite}_{index}",
        command=None,
        sim="libero",
        sim_args={"suite": suite, "task": index},
        horizon=horizon,
        atoms=tuple(atoms),
        subtasks=tuple(subtasks),
    )


def teleport(world, body, state, rng, above=(0.0, 0.03)):
    """Put the scene where a goal predicate is likely to hold, `above` m higher; physics goes on from there."""
    import mujoco

    env = world.use(body)
    sim, (name, *args) = env.sim, state
    if name in ("in", "on"):
        thing, place = args
        if place in env.object_sites_dict:
            target = sim.data.get_site_xpos(place).copy()
            if name == "on":
                target[2] += env.object_sites_dict[place].size[2]
        else:
            target = sim.data.body_xpos[env.obj_body_id[place]].copy()
        target += [*rng.uniform(-0.005, 0.005, 2), rng.uniform(*above)]
        joint = env.get_object(thing).joints[-1]
        quaternion = sim.data.get_joint_qpos(joint)[3:]
        sim.data.set_joint_qpos(joint, np.concatenate([target, quaternion]))
        sim.data.set_joint_qvel(joint, np.zeros(6))
    else:
        owner = env.object_sites_dict.get(args[0]) or env.get_object(args[0])
        for joint in owner.joints:
            low, high = sim.model.jnt_range[sim.model.joint_name2id(joint)]
            for value in rng.permutation(np.linspace(low, high, 50)):
                sim.data.set_joint_qpos(joint, value)
                if env._eval_predicate(state):
                    break
    mujoco.mj_forward(world.model, body.data)
    body.before = body.data.qpos.copy()


def random_actions(rng, steps, envs=1):
    """[envs, steps, 7], some of which turn nothing."""
    action = rng.uniform(-1, 1, (envs, steps, 7)).astype(np.float32)
    action[:, ::4, 3:6] = 0
    return action
