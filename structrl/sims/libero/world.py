"""One LIBERO task's model and the environments that share it: each environment is one MjData of the same MjModel.

LIBERO's environment object is built once, its `reset` is never called: that would compile the model again. It
serves as the interpreter of predicates and controller constants; `use` puts one environment's data under it.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.suite import LiberoTask, load_libero

Array = NDArray[np.float64]


@dataclass
class Body:
    """One environment: MuJoCo's data, and the state that LIBERO keeps outside of it.

    `before` is qpos as it was before the last substep: positions and contacts in `data`, on which LIBERO's predicates
    and observations rest, belong to it and not to the qpos in `data`.
    """

    data: Any  # mujoco.MjData
    fixtures: Array  # [F, 7] position and quaternion of the fixtures: part of the model, and drawn per environment
    goal_pos: Array  # [3] m, where the arm's controller is heading
    goal_ori: Array  # [3, 3]
    grip: Array  # [2] the gripper's integrated command
    before: Array  # [nq]
    start_heights: Array = field(default_factory=lambda: np.zeros(0))  # m, per atom; of `lifted` after settling


class World:
    """The model of one task.

    Args:
        task: which.
        fixture_seed: seed of numpy's global generator under which LIBERO draws the poses of cabinets, stoves and so
            on. They are part of no initial state, so they are the same in every episode; the generator is put back.
        textures: load the scene's pictures; without them the model cannot be rendered and is far smaller.

    Attributes:
        env: LIBERO's environment object (a robosuite environment).
        model: MuJoCo's model.
        inits: the benchmark's initial states [50, 1 + nq + nv].
        fixtures: drawn fixture poses [F, 7].
    """

    def __init__(self, task: LiberoTask, fixture_seed: int, textures: bool):
        self.task = task
        before = np.random.get_state()  # noqa: NPY002 - LIBERO draws from this generator
        np.random.seed(fixture_seed)  # noqa: NPY002
        try:
            self.env = _build(task, textures)
        finally:
            np.random.set_state(before)  # noqa: NPY002
        sim = self.env.sim
        self.model = sim.model._model
        if self.model.na or self.model.nmocap or self.model.nuserdata or self.model.neq:
            raise RuntimeError(f"{task.bddl}: its model has state that is not saved")
        # As LIBERO's own reset does: helper sites are not drawn.
        self.env.visualize(dict.fromkeys(self.env._visualizations, False))
        self.fixture_bodies = np.array(
            [sim.model.body_name2id(fixture.root_body) for fixture in self.env.fixtures_dict.values()], np.int64
        )
        self.fixtures = self._model_fixtures()
        self._applied = self.fixtures
        self._spare: list[Any] = [sim.data._data]
        self.inits = task.init_states()
        if self.inits.shape[1] != 1 + self.model.nq + self.model.nv:
            raise RuntimeError(f"{task.states}: states of width {self.inits.shape[1]} do not fit the model")
        controller = self.env.robots[0].controller
        # A fresh controller heads for the arm's nominal pose, and keeps that orientation until an action turns it.
        self._home = (np.array(controller.initial_ee_pos), np.array(controller.initial_ee_ori_mat))

    def _model_fixtures(self) -> Array:
        m, at = self.model, self.fixture_bodies
        return np.concatenate([m.body_pos[at], m.body_quat[at]], axis=1)

    def new_body(self) -> Body:
        """A further environment of this task; hand it back with `free`."""
        import mujoco

        data = self._spare.pop() if self._spare else mujoco.MjData(self.model)
        return Body(data, self.fixtures, *self._home, np.zeros(2), np.zeros(self.model.nq))

    def free(self, body: Body) -> None:
        """Keep a body's data for the next one."""
        self._spare.append(body.data)

    def use(self, body: Body) -> Any:
        """Put `body` under LIBERO's environment object, which is returned."""
        self.env.sim.data._data = body.data
        if body.fixtures is not self._applied:
            at = self.fixture_bodies
            self.model.body_pos[at], self.model.body_quat[at] = body.fixtures[:, :3], body.fixtures[:, 3:]
            self._applied = body.fixtures
        return self.env

    def start(self, body: Body, init: int) -> None:
        """Put `body` at a stored initial state, not settled, as `env.reset(); env.set_init_state(...)` does."""
        import mujoco

        body.fixtures = self.fixtures
        body.goal_pos, body.goal_ori = (goal.copy() for goal in self._home)
        body.grip = np.zeros(2)
        self.use(body)
        mujoco.mj_resetData(self.model, body.data)
        nq = self.model.nq
        state = self.inits[init]
        body.data.time, body.data.qpos[:], body.data.qvel[:] = state[0], state[1 : 1 + nq], state[1 + nq :]
        mujoco.mj_forward(self.model, body.data)
        body.before = body.data.qpos.copy()

    def physics(self, body: Body) -> Array:
        """[1 + 2 nq + 2 nv + nu]: time, qpos, qvel, warm start of the solver, control, and `before`."""
        d = body.data
        return np.concatenate([[d.time], d.qpos, d.qvel, d.qacc_warmstart, d.ctrl, body.before])

    def set_physics(self, body: Body, physics: Array) -> None:
        """Restore what `physics` returned; positions and contacts are computed again from `before`."""
        import mujoco

        m, d = self.model, body.data
        self.use(body)
        mujoco.mj_resetData(m, d)
        cuts = np.cumsum([1, m.nq, m.nv, m.nv, m.nu, m.nq])
        time, qpos, qvel, warm, ctrl, before = np.split(physics[: cuts[-1]], cuts[:-1])
        d.qpos[:] = body.before = before.copy()
        mujoco.mj_fwdPosition(m, d)
        d.time, d.qpos[:], d.qvel[:], d.qacc_warmstart[:], d.ctrl[:] = time[0], qpos, qvel, warm, ctrl

    def broken(self, body: Body) -> bool:
        """Whether MuJoCo has warned of this environment's physics since it was started."""
        import mujoco

        counts = np.array([warning.number for warning in body.data.warning])
        counts[mujoco.mjtWarning.mjWARN_VGEOMFULL] = 0  # too much to draw is no matter of physics
        return bool(counts.any())

    def close(self) -> None:
        """Release LIBERO's environment."""
        self.env.close()


def _build(task: LiberoTask, textures: bool) -> Any:
    """LIBERO's environment object of a task, at a freshly drawn state."""
    environments = load_libero()
    from libero.libero.envs.bddl_utils import get_problem_info
    from robosuite import load_controller_config

    problem = environments.TASK_MAPPING[get_problem_info(str(task.bddl))["problem_name"]]
    if not textures:
        problem = _without_textures(problem)
    # What LIBERO's own ControlEnv passes on, without what only its observations need.
    return problem(
        str(task.bddl),
        robots=["Panda"],
        controller_configs=load_controller_config(default_controller="OSC_POSE"),
        gripper_types="default",
        initialization_noise=None,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        control_freq=20,
        ignore_done=True,
        camera_names=[],
    )


def _without_textures(problem: type) -> type:
    """The class with pictures removed from the scene before it is compiled: they change no physics."""
    import xml.etree.ElementTree as ElementTree

    def strip(xml: str) -> str:
        root = ElementTree.fromstring(xml)
        for assets in root.iter("asset"):
            for texture in assets.findall("texture"):
                assets.remove(texture)
        for material in itertools.chain(root.iter("material")):
            for key in ("texture", "texuniform", "texrepeat"):
                material.attrib.pop(key, None)
        return ElementTree.tostring(root, encoding="unicode")

    def initialize_sim(self: Any, xml_string: str | None = None) -> None:
        self.set_xml_processor(strip)
        problem._initialize_sim(self, xml_string)  # type: ignore[attr-defined]

    # LIBERO compares the name of the class with the problem's.
    return type(problem.__name__, (problem,), {"_initialize_sim": initialize_sim})
