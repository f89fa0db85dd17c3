"""Every TensorDict key of the project, in one place (torch-free).

Shapes: E environments, H action-chunk length, N padded subtasks, A action dims,
K denoising steps, M x D model action rows x dims.
"""

# -- written by the chunk environment ---------------------------------------------------------------------------------
OBSERVATION = "observation"  # nested: `state` f32 [E, S]; `tokens` f32 [E, n, F]; `images.<cam>` uint8 [E, C, h, w]
STATE = ("observation", "state")  # proprioception
TOKENS = ("observation", "tokens")  # one row per named entity of the scene (object-state tokens)
TASK = "task"  # int64 [E, 1], row in the list of task files
START = "start"  # int64 [E, 6] (task, init, seed, stream, iteration, episode); read by reset, echoed by it
TIME = "t"  # int64 [E, 1], environment steps since reset
STEPS = "steps"  # int64 [E, 1], environment steps executed by this chunk (0 for an environment that was done)
HOLDS = "holds"  # bool [E, H+1, N]; row 0 is before the chunk; rows after `steps` repeat the last one
SUCCESS = "success"  # bool [E, 1]
FAILED = "failed"  # bool [E, 1], the task's fail condition or unstable physics
DROPPED = "dropped"  # bool [E, 1], lost with its worker: done (and truncated), but no episode
TERMINATED = "terminated"  # bool [E, 1], success or failed
TRUNCATED = "truncated"  # bool [E, 1], horizon reached without success, or dropped
DONE = "done"  # bool [E, 1], terminated or truncated

# -- written by StructuredReward --------------------------------------------------------------------------------------
REWARD = "reward"  # f32 [E, 1]
REWARD_PARTS = "reward_parts"  # nested f32 [E, 1]: `subtask`, `terminal`
REWARD_STATE = "reward_state"  # f32 [E, R]: what a critic may see, before the next chunk
PLAN = "plan"  # nested reward state, see structrl.rewards.functional

# -- written by the policy --------------------------------------------------------------------------------------------
ACTION = "action"  # f32 [E, H, A], environment units
CHAIN = ("flow", "chain")  # f32 [E, K+1, M, D]
INDEX = ("flow", "index")  # int64 [E], the stochastic denoising step (mode `one`), else -1
LOG_PROB = "sample_log_prob"  # f32 [E]
STEP_LOG_PROB = ("flow", "step_log_prob")  # f32 [E, K], its parts; 0 at ODE steps
VALUE = "state_value"  # f32 [E, 1]
