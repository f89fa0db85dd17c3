"""The SDE against published numbers, analytic marginals and torch.distributions. Float64 throughout."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from structrl.policies import flow
from structrl.policies.flow import FlowOptions, transition

F64 = torch.float64
X, V, Y = [0.8, -1.2], [1.5, -0.4], [0.35, -0.9]
K4 = torch.arange(4)


def rows(values, n=4) -> Tensor:
    return torch.tensor(values, dtype=F64).expand(n, 1, len(values))


def close(actual: Tensor, expected, atol=1e-6) -> None:
    torch.testing.assert_close(
        actual.squeeze(), torch.tensor(expected, dtype=F64), atol=atol, rtol=0, check_dtype=actual.dtype != F64
    )


V1_MEAN = [[0.325, -0.95], [0.278125, -0.9375], [0.328125, -1.0125], [0.344792, -1.0375]]
V1_STD = [0.5, 0.433013, 0.25, 0.144338]
V1_LOGP = [[-0.227041, -0.230791], [-0.095726, -0.085700], [0.463528, 0.366106], [1.016011, 0.562912]]


@pytest.mark.parametrize(("direction", "sign"), [("data_to_noise", 1), ("noise_to_data", -1)])
def test_v1_v2_sde(direction, sign):
    mean, std = transition(rows(X), sign * rows(V), K4, steps=4, direction=direction, noise=0.5)
    close(mean, V1_MEAN)
    close(std[..., 0], V1_STD)
    close(flow.log_density(rows(Y), mean, std), V1_LOGP)


def test_v2_groot_velocity_not_negated():
    mean, std = transition(rows(X, 1), rows(V, 1), torch.tensor([1]), steps=4, direction="noise_to_data", noise=0.5)
    close(mean, [1.121875, -1.1625])
    close(flow.log_density(rows(Y, 1), mean, std), [-1.670726, -0.265700])


@pytest.mark.parametrize(
    ("direction", "expected"), [("data_to_noise", [0.425, -1.1]), ("noise_to_data", [1.175, -1.3])]
)
def test_v3_ode(direction, expected):
    mean, std = transition(rows(X), rows(V), K4, steps=4, direction=direction, noise=0.0)
    close(mean, [expected] * 4)
    assert (std == 0).all()
    assert (flow.log_density(rows(Y), mean, std) == 0).all()


CPS = {
    "data_to_noise": [[0.249264, -0.836396], [0.252925, -0.909619], [0.311504, -0.997487], [0.425, -1.1]],
    "noise_to_data": [[0.999264, -1.036396], [1.112760, -1.138909], [1.171339, -1.226777], [1.175, -1.3]],
}


@pytest.mark.parametrize("direction", CPS)
def test_v3_cps(direction):
    mean, std = transition(rows(X), rows(V), K4, steps=4, direction=direction, noise=0.5, variant="cps")
    close(mean, CPS[direction])
    close(std[..., 0], [0.530330, 0.353553, 0.176777, 0])
    if direction == "data_to_noise":
        expected = [[-0.302723, -0.291875], [0.083088, 0.120412], [0.790218, 0.661869], [0, 0]]
        close(flow.log_density(rows(Y), mean, std), expected)


@pytest.mark.parametrize(
    ("steps", "noise", "expected"),
    [
        (5, 0.3, [0.3, 0.268328, 0.164317, 0.109545, 0.067082]),
        (5, 0.5, [0.5, 0.447214, 0.273861, 0.182574, 0.111803]),
        (10, 0.5, [0.5, 0.474342, 0.316228, 0.241523, 0.193649, 0.158114, 0.129099, 0.103510, 0.079057, 0.052705]),
    ],
)
def test_v4_std_by_step(steps, noise, expected):
    x = rows([0.0], steps)
    _, std = transition(x, x, torch.arange(steps), steps=steps, direction="noise_to_data", noise=noise)
    close(std, expected)


def test_v5_learned_std_and_anneal():
    u = torch.tensor([-10, -1, 0, 0.5, 1, 10], dtype=F64)
    close(flow.learned_std(u, 0.08, 0.16), [0.08, 0.086891, 0.113137, 0.132789, 0.147311, 0.16])
    levels = [flow.anneal(0.7, 0.3, i, 400) for i in (0, 100, 400, 1000)]
    assert levels == pytest.approx([0.7, 0.6, 0.3, 0.3])


V6_X = [[1.76, 0.40, 0.98], [2.24, 1.87, -0.98], [0.95, -0.15, -0.10], [0.41, 0.14, 1.45]]
V6_V = [[0.76, 0.12, 0.44], [0.33, 1.49, -0.21], [0.31, -0.85, -2.55], [0.65, 0.86, -0.74]]
V6_Y = [[2.48, -0.21, 0.89], [2.08, 2.11, -0.34], [0.93, 0.21, 0.18], [-0.54, -0.21, 1.70]]


def test_v6_scored_entries_only():
    x, v, y = (torch.tensor(m, dtype=F64) for m in (V6_X, V6_V, V6_Y))
    scored = torch.zeros(4, 3, dtype=torch.bool)
    scored[:2, :2] = True
    options, index = FlowOptions(steps=4, noise=0.5, mode="one"), torch.tensor([1])
    chain = torch.full((1, 5, 4, 3), torch.nan, dtype=F64)
    chain[0, 1], chain[0, 2] = x, y

    def score(shift, mask=scored):
        velocity = lambda x_R, t_R: (v + shift).expand_as(x_R)  # noqa: E731
        steps = flow.replay(velocity, chain, index, options, "data_to_noise", mask).log_prob
        assert (steps[0, [0, 2, 3]] == 0).all()
        return steps.sum()

    close(score(0), -6.862418)
    close(score(0, torch.ones_like(scored)), -10.324360)
    close(score(0.1), -7.130825)
    close((score(0.1) - score(0)).exp(), 0.764597)
    mean, std = transition(
        x[None], v[None], torch.tensor([1]), steps=4, direction="data_to_noise", noise=0.5, gate=scored
    )
    ode, _ = transition(x[None], v[None], torch.tensor([1]), steps=4, direction="data_to_noise", noise=0.0)
    assert ((std > 0) == scored).all()
    assert (mean == ode)[:, ~scored].all()  # unscored entries follow the ODE
    assert (mean != ode)[:, scored].all()


def test_v7_joint_learned_noise():
    chain = torch.tensor([0.5, 0.2, -0.1], dtype=F64)
    k = torch.arange(2)

    def steps(v):
        mean, std = transition(
            chain[:2, None, None],
            torch.tensor(v, dtype=F64)[:, None, None],
            k,
            steps=2,
            direction="data_to_noise",
            noise=torch.tensor(0.1, dtype=F64),
            variant="learned",
        )
        return flow.log_density(chain[1:, None, None], mean, std)

    old, new = steps([0.5, 0.7]), steps([0.55, 0.65])
    close(old, [1.258647] * 2)
    close(new, [1.352397] * 2)
    close(new.sum() - old.sum(), 0.1875)  # the true joint log-ratio: a sum, and x_0 does not count
    close(flow.entropy(torch.tensor([0.1, 1.0], dtype=F64)), [-0.883647, 1.418939])


@pytest.mark.parametrize("variant", ["sde", "cps"])
def test_directions_mirror_each_other(variant):
    g = torch.Generator().manual_seed(0)
    x, v = (torch.randn(7, 3, 2, generator=g, dtype=F64) for _ in range(2))
    k = torch.arange(7)
    a = transition(x, v, k, steps=7, direction="noise_to_data", noise=0.4, variant=variant)
    b = transition(x, -v, k, steps=7, direction="data_to_noise", noise=0.4, variant=variant)
    torch.testing.assert_close(a, b, atol=0, rtol=0)
    close(flow.flow_time(k, 7, "noise_to_data", F64) + flow.flow_time(k, 7, "data_to_noise", F64), [1.0] * 7)


def gaussian_velocity(m: float, s: float):
    """Exact noise_to_data velocity for data N(m, s^2): the marginal at t is N(t m, t^2 s^2 + (1 - t)^2)."""

    def velocity(x, t):
        t = t[:, None, None]
        variance = t**2 * s**2 + (1 - t) ** 2
        return m + (t * s**2 - (1 - t)) / variance * (x - t * m)

    return velocity


def final_moments(steps: int, noise: float, first: int = 0, drift: bool = True, m=0.7, s=0.4) -> tuple[float, float]:
    """Mean and variance of x_K from the exact marginal at step `first`, without sampling.

    Each transition is affine in x, so both moments follow from two evaluations a step. `drift=False` leaves out the
    correction of the mean, for the power of the test.
    """
    velocity, t = gaussian_velocity(m, s), first / steps
    mean, variance = torch.tensor([t * m, t**2 * s**2 + (1 - t) ** 2], dtype=F64)
    for k in range(first, steps):
        k_B = torch.tensor([k, k])
        x = torch.tensor([0.0, 1.0], dtype=F64).view(2, 1, 1)
        v = velocity(x, flow.flow_time(k_B, steps, "noise_to_data", F64))
        out, std = transition(x, v, k_B, steps=steps, direction="noise_to_data", noise=noise)
        if not drift:
            out, _ = transition(x, v, k_B, steps=steps, direction="noise_to_data", noise=0.0)
        slope = out[1] - out[0]
        mean, variance = (out[0] + slope * mean).squeeze(), (slope**2 * variance + std[0] ** 2).squeeze()
    return mean.item(), variance.item()


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.5, 1.0])
def test_sde_keeps_the_marginal_of_the_ode(noise):
    def error(steps: int, **arguments) -> float:
        mean, variance = final_moments(steps, noise, **arguments)
        assert mean == pytest.approx(0.7, abs=1e-9)
        return abs(variance - 0.16)

    coarse, fine = error(100, first=20), error(400, first=80)
    assert fine < 1e-2
    assert coarse == pytest.approx(4 * fine, rel=0.1)  # Euler's first order in 1/K, hence exact in the limit
    # The whole chain keeps a small excess: the first steps, whose singular sigma is cut off, do not refine with K.
    assert error(800) < 1e-3
    if noise:
        assert error(400, first=80, drift=False) > 5 * fine


def test_sampled_marginal():
    steps, n = 100, 20_000
    noise = torch.randn(n, steps + 1, 1, 1, generator=torch.Generator().manual_seed(1), dtype=F64)
    options = FlowOptions(steps=steps, noise=0.5, mode="joint")
    index = torch.full((n,), -1)
    chain, _ = flow.sample(gaussian_velocity(0.7, 0.4), noise, index, options, "noise_to_data", torch.tensor([[True]]))
    mean, variance = final_moments(steps, noise=0.5)
    assert chain[:, -1].mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / n))
    assert chain[:, -1].var().item() == pytest.approx(variance, rel=4 * math.sqrt(2 / n))


@pytest.mark.parametrize("direction", ["noise_to_data", "data_to_noise"])
@pytest.mark.parametrize("mode", ["one", "joint", "early"])
def test_replay_and_gradient_match_torch_distributions(mode, direction):
    """Ratio 1 on replay, and value and gradient equal to an independent Normal built from the SDE's textbook form."""
    B, K, a = 12, 4, 0.5
    g = torch.Generator().manual_seed(2)
    noise = torch.randn(B, K + 1, 3, 2, generator=g, dtype=F64)
    index = torch.arange(B) % K if mode == "one" else torch.full((B,), -1)
    scored = torch.tensor([[True, False], [True, False], [False, False]])
    weight = torch.randn(2, 2, generator=g, dtype=F64, requires_grad=True)
    velocity = lambda x, t: torch.tanh(x @ weight) * (1 + t)[:, None, None]  # noqa: E731
    options = FlowOptions(steps=K, noise=a, mode=mode)

    with torch.no_grad():
        chain, old = flow.sample(velocity, noise, index, options, direction, scored)
    new = flow.replay(velocity, chain, index, options, direction, scored).log_prob
    torch.testing.assert_close(new.detach(), old, atol=1e-13, rtol=0)
    (gradient,) = torch.autograd.grad((new.sum(1) * torch.arange(B)).sum(), weight)

    expected = torch.zeros(B, dtype=F64)
    for b in range(B):
        for k in {"one": [index[b].item()], "joint": range(K), "early": range(K - 1)}[mode]:
            tau, dt = 1 - k / K, 1 / K  # noise level
            x, y = chain[b, k], chain[b, k + 1]
            t = tau if direction == "data_to_noise" else 1 - tau
            u = velocity(x[None], torch.tensor([t], dtype=F64))[0] * (1 if direction == "data_to_noise" else -1)
            sigma = a * math.sqrt(tau / (1 - tau if k else 1 / K))
            mean = x - u * dt - sigma**2 / (2 * tau) * (x + (1 - tau) * u) * dt
            expected[b] = expected[b] + Normal(mean, sigma * math.sqrt(dt)).log_prob(y)[scored].sum()
    torch.testing.assert_close(new.sum(1), expected, atol=1e-12, rtol=0)
    (reference,) = torch.autograd.grad((expected * torch.arange(B)).sum(), weight)
    torch.testing.assert_close(gradient, reference, atol=1e-10, rtol=1e-12)


@pytest.mark.parametrize("direction", ["noise_to_data", "data_to_noise"])
@pytest.mark.parametrize("mode", ["one", "early"])
@pytest.mark.parametrize("sampler", ["cps", "learned"])
def test_other_samplers_replay_what_they_sampled(sampler, mode, direction):
    """Ratio 1 on replay, chains whose increments have the stated spread, and gradients into the standard deviation."""
    B, K = 4000, 4
    g = torch.Generator().manual_seed(5)
    noise = torch.randn(B, K + 1, 2, 1, generator=g, dtype=F64)
    options = FlowOptions(steps=K, noise=0.5, mode=mode, sampler=sampler, learned_range=(0.2, 0.4))
    index = torch.arange(B) % options.drawable_steps
    scored = torch.tensor([[True], [False]])
    velocity = lambda x, t: 0.3 * x * (1 + t)[:, None, None]  # noqa: E731
    u = torch.full((2, 1), 0.4, dtype=F64, requires_grad=True)
    learned = (lambda t: flow.learned_std(u, 0.2, 0.4).expand(len(t), 2, 1)) if sampler == "learned" else None
    with torch.no_grad():
        chain, old = flow.sample(velocity, noise, index, options, direction, scored, learned)
    new = flow.replay(velocity, chain, index, options, direction, scored, learned)
    torch.testing.assert_close(new.log_prob.detach(), old, atol=1e-12, rtol=0)
    assert ((new.std > 0) == scored).all(), "a scored step without noise, or noise on an entry that is not scored"
    if sampler == "learned":
        assert torch.autograd.grad(new.log_prob.sum(), u)[0].abs().sum() > 0
        wanted = flow.learned_std(torch.tensor(0.4, dtype=F64), 0.2, 0.4)
        torch.testing.assert_close(new.std[..., 0, 0].detach(), wanted.expand(B, options.scored_steps))
    k = index[:, None] if mode == "one" else torch.arange(options.scored_steps).expand(B, -1)
    row = torch.arange(B)[:, None]
    z = (chain[row, k + 1] - new.mean.detach())[..., 0, 0] / new.std.detach()[..., 0, 0]
    assert z.mean().abs() < 4 / math.sqrt(z.numel())
    assert (z.var() - 1).abs() < 4 * math.sqrt(2 / z.numel())


def test_kl_of_gaussians():
    g = torch.Generator().manual_seed(6)
    mean, other = torch.randn(2, 5, 1, 1, generator=g, dtype=F64)
    std, other_std = torch.rand(2, 5, 1, 1, generator=g, dtype=F64) + 0.1
    expected = torch.distributions.kl_divergence(Normal(mean, std), Normal(other, other_std))
    torch.testing.assert_close(flow.gaussian_kl(mean, std, other, other_std), expected)
    zero = torch.zeros_like(std)
    assert (flow.gaussian_kl(mean, zero, other, zero) == 0).all()


def test_noise_moves_over_iterations():
    options = FlowOptions(noise=0.7, noise_end=0.3, noise_iterations=400)
    assert [options.at(i).noise for i in (0, 100, 400, 1000)] == pytest.approx([0.7, 0.6, 0.3, 0.3])
    assert FlowOptions(noise=0.7).at(50) == FlowOptions(noise=0.7)


def test_only_scored_entries_of_stochastic_steps_take_noise():
    B, K = 8, 4
    noise = torch.randn(B, K + 1, 2, 2, generator=torch.Generator().manual_seed(3), dtype=F64)
    index, scored = torch.arange(B) % K, torch.tensor([[True, False], [False, True]])
    velocity = lambda x, t: -x  # noqa: E731 - elementwise, so entries do not mix
    run = lambda n: flow.sample(velocity, n, index, FlowOptions(mode="one"), "noise_to_data", scored)[0]  # noqa: E731
    other = noise.clone()
    other[:, 1:] += 1.0
    changed = (run(noise) != run(other)).diff(dim=1).clamp(min=0)  # where the two chains part
    expected = torch.zeros_like(changed)
    for b in range(B):
        expected[b, index[b]] = scored.to(changed.dtype)
    assert (changed.bool() == expected.bool()).all()


def test_integrate_solves_the_ode():
    x = torch.randn(64, 1, 1, generator=torch.Generator().manual_seed(4), dtype=F64)
    end = flow.integrate(gaussian_velocity(0.7, 0.4), x, 2000, "noise_to_data")
    torch.testing.assert_close(end, 0.7 + 0.4 * x, atol=2e-3, rtol=0)  # the exact flow map of a Gaussian


def test_bf16_velocity_keeps_a_fp32_chain():
    x = torch.randn(2, 1, 3)
    mean, std = transition(
        x, x.bfloat16(), torch.zeros(2, dtype=torch.int64), steps=4, direction="noise_to_data", noise=0.5
    )
    assert mean.dtype == std.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"steps": 1}, "steps"),
        ({"noise": 0.0}, "noise"),
        ({"mode": "all"}, "mode"),
        ({"sampler": "ode"}, "sampler"),
        ({"sampler": "cps", "mode": "joint"}, "sampler 'cps'"),
        ({"sampler": "cps", "mode": "one", "steps": 1}, "steps"),
        ({"sampler": "cps", "noise": 1.1}, "noise"),
        ({"noise_end": 0.0}, "noise_end"),
        ({"noise_end": 0.1, "sampler": "learned"}, "noise_end"),
        ({"noise_iterations": 0}, "noise_iterations"),
        ({"learned_range": (0.2, 0.1)}, "learned_range"),
        ({"precision": "fp16"}, "precision"),
    ],
)
def test_bad_options_are_named(arguments, word):
    with pytest.raises(ValueError, match=f"flow.{word}"):
        FlowOptions(**arguments)


def test_unknown_direction_and_variant():
    x, k = torch.zeros(1, 1, 1), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="direction"):
        transition(x, x, k, steps=4, direction="backwards", noise=0.5)
    with pytest.raises(ValueError, match="variant"):
        transition(x, x, k, steps=4, direction="noise_to_data", noise=0.5, variant="ode")
