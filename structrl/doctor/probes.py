"""What only a trial shows, each in a process of its own: a driver or simulator that crashes or hangs ends only that.

`python -m structrl.doctor.probes WHAT [ARGUMENT]` writes one JSON object as its last line.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PICTURES = 5
STEPS = 8  # of the longer of two chunks
SCENE = """<mujoco><worldbody><light pos="0 0 2"/><geom type="box" size=".1 .1 .1"/>
<camera name="c" pos="0 -1 0" xyaxes="1 0 0 0 0 1"/></worldbody></mujoco>"""


class ProbeError(RuntimeError):
    """A probe failed; its message is what it wrote last."""


def probe(what: str, *arguments: str, timeout: float, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a probe and return what it found.

    Args:
        what: a key of PROBES.
        arguments: of the probe.
        timeout: seconds.
        environment: variables to add.

    Raises:
        ProbeError: it crashed, failed, or took longer.
    """
    command = [sys.executable, "-m", "structrl.doctor.probes", what, *arguments]
    # where structrl is found here, it is found there
    path = os.pathsep.join(p for p in sys.path if p)
    variables = os.environ | {"PYTHONPATH": path} | (environment or {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables, errors="replace")
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {timeout:.0f} s") from None
    if done.returncode == 0 and done.stdout.strip():
        return json.loads(done.stdout.strip().splitlines()[-1])
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    end = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    raise ProbeError(said[-1].strip() if said and done.returncode > 0 else f"{end}{': ' if said else ''}{said[-1:]}")


def torch() -> dict[str, Any]:
    """Torch as it finds this machine, and whether TorchRL and Lightning can be imported beside it."""
    import lightning.pytorch
    import torch
    import torchrl.envs

    gpus = []
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        x = torch.ones(256, 256, device=f"cuda:{i}")
        ok = bool(torch.isfinite(x @ x).all())  # a driver that does not fit fails here
        capability = ".".join(map(str, torch.cuda.get_device_capability(i)))
        gpus.append({"name": torch.cuda.get_device_name(i), "free": free, "total": total, "ok": ok, "sm": capability})
    return {
        "threads": torch.get_num_threads(),
        "cuda_build": torch.version.cuda,
        "gpus": gpus,
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "imported": [lightning.pytorch.__name__, torchrl.envs.__name__],
    }


def egl() -> dict[str, Any]:
    """Number of EGL devices."""
    os.environ["PYOPENGL_PLATFORM"] = "egl"
    from mujoco.egl import egl_ext

    return {"devices": len(egl_ext.eglQueryDevicesEXT())}


def render() -> dict[str, Any]:
    """Draw a box with the backend of MUJOCO_GL; the driver, and milliseconds per picture of 256 x 256."""
    import mujoco
    import numpy as np
    from OpenGL import GL

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 256, 256) as renderer:

        def draw() -> np.ndarray:
            renderer.update_scene(data, "c")
            return renderer.render()

        picture = draw()
        driver = GL.glGetString(GL.GL_RENDERER)
        clock = time.perf_counter()
        for _ in range(PICTURES):
            draw()
        ms = (time.perf_counter() - clock) / PICTURES * 1e3
    # the box fills the middle of the picture, and the sky around it is black
    drawn = bool(picture[128, 128].max() > picture[0, 0].max())
    return {"driver": driver.decode() if driver else "unknown", "ms": ms, "drawn": drawn}


def simulator(task: str) -> dict[str, Any]:
    """Construct the simulator of a task file with two environments, run chunks of 1 and of STEPS steps, observe."""
    import torch

    from structrl import keys
    from structrl.envs import EnvConfig, make_env
    from structrl.rewards import RewardOptions

    torch.set_num_threads(1)
    clock = time.perf_counter()
    seconds: dict[str, float] = {}
    for chunk in (1, STEPS):
        env = make_env(EnvConfig([task], num_envs=2, chunk=chunk, reward=RewardOptions(pace="fixed")))
        seconds.setdefault("start", time.perf_counter() - clock)
        td = env.reset()
        shape = env.action_spec.shape
        times = []
        for _ in range(4):
            clock = time.perf_counter()
            td = env.step(td.set(keys.ACTION, torch.zeros(shape)))["next"]
            times.append(time.perf_counter() - clock)
            if td[keys.DONE].any():
                td = env.reset()
        seconds[str(chunk)] = min(times[1:]) / shape[0]
        observation = {".".join(k) if isinstance(k, tuple) else k: list(v.shape[1:]) for k, v in
                       td[keys.OBSERVATION].items(True, True)}  # fmt: skip
        finite = all(bool(torch.isfinite(v).all()) for v in td[keys.OBSERVATION].values(True, True))
        env.close()
    step = max(seconds[str(STEPS)] - seconds["1"], 0.0) / (STEPS - 1)
    return {
        "start_s": seconds["start"],
        "step_ms": step * 1e3,
        "observe_ms": max(seconds["1"] - step, 0.0) * 1e3,
        "observation": observation,
        "finite": finite,
    }


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "torch": torch,
    "egl": egl,
    "render": render,
    "simulator": simulator,
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])))
