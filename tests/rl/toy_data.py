"""Joint training of two toy tasks with plans of different sizes: RolloutData without task files."""

from torchrl.envs import TransformedEnv

from structrl.envs import ChunkEnv, EnvConfig, Halves
from structrl.plan import stack_plans
from structrl.policies.compact import CompactVLA
from structrl.policies.protocol import VLASpec
from structrl.rewards import RewardOptions, StructuredReward
from structrl.rl.data import RolloutData
from structrl.sims.pool import Pool
from tests.toy import ToySimulator, toy_task

CHUNK = 4
TASKS = (
    toy_task(2, name="pair", horizon=24, chain=False),
    toy_task(3, name="chain", horizon=30, atoms=3),
)
EASY = (toy_task(1, name="reach", horizon=24),)


def toy_env(num_envs: int, tasks: tuple = TASKS, workers: int = 0) -> TransformedEnv:
    simulator: ToySimulator | Pool = ToySimulator(tasks, num_envs, dims=3)
    if workers:
        simulator = Pool("toy", "tests.toy:ToySimulator", tasks, num_envs, CHUNK, {"dims": 3}, workers=workers)
    return TransformedEnv(ChunkEnv(simulator, CHUNK), StructuredReward(stack_plans(tasks), RewardOptions(), CHUNK))


def toy_halves(num_envs: int, tasks: tuple = TASKS) -> Halves:
    return Halves([toy_env(num_envs - num_envs // 2, tasks), toy_env(num_envs // 2, tasks)])


class ToyData(RolloutData):
    """RolloutData on the toy simulator; `env.tasks` is not read."""

    def __init__(
        self,
        num_envs: int = 8,
        episodes_per_iteration: int = 16,
        evaluate_episodes: int = 6,
        seed: int | None = None,
        easy: bool = False,
        overlap: bool = False,
        workers: int = 0,
    ):
        self.tasks = EASY if easy else TASKS
        env = EnvConfig(tasks=["toy"], num_envs=num_envs, chunk=CHUNK, overlap=overlap, workers=workers)
        super().__init__(env, episodes_per_iteration, evaluate_episodes, seed)

    def make_environment(self) -> TransformedEnv | Halves:
        E = self.env.num_envs
        if self.env.overlap:
            return toy_halves(E, self.tasks)
        return toy_env(E, self.tasks, self.env.workers)


def small_policy(spec: VLASpec) -> CompactVLA:
    return CompactVLA(spec, width=32, depth=1)
