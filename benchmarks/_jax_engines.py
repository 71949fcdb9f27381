"""NAVIX and XLand-MiniGrid in JAX on the CPU: steps of environments, and PPO on them.

`skills_jax.py` runs it with a Python that has both packages; it imports nothing of this project. It first prints the
versions. Then a line on stdin is a measurement's settings as JSON, and the line on stdout answers it: the rate, and at
the first measurement with these settings also the seconds of compilation.

Environments are divided over devices, one of XLA's CPU devices per core: every device then runs its own loop, instead
of a loop whose single operations are divided over threads. `devices=1` is that other way.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax

ACTIONS = 6  # of both libraries: turns, forward, pick up, drop, toggle
CHANNELS, HIDDEN, MEMORY = 16, 128, 128  # sizes of this project's network
VIEW, CODES = 7, 16  # width of a view; numbers of a cell's parts are below
MINIBATCHES, ROLLOUT = 4, 32
GAMMA, LAMBDA, CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM = 0.98, 0.95, 0.2, 0.5, 0.01, 2.0


class Seen(NamedTuple):
    """What a step gives: the view, uint8 [7, 7, parts], direction, reward, and whether the episode ended."""

    view: jax.Array
    direction: jax.Array
    reward: jax.Array
    ended: jax.Array


class Game(NamedTuple):
    """Functions of one environment: `reset(key)` and `step(state, action)` with resets; `seen(state)`."""

    reset: Callable[[jax.Array], Any]
    step: Callable[[Any, jax.Array], Any]
    seen: Callable[[Any], Seen]


def navix(level: str) -> Game:
    """A level of NAVIX with the view of the agent; a step after the end of an episode begins the next one."""
    import navix as nx

    observation = nx.observations.symbolic_first_person
    env = nx.make(f"Navix-{level}-v0", observation_fn=observation)

    def seen(state: Any) -> Seen:
        direction = state.state.get_player(idx=0).direction
        return Seen(state.observation, direction, state.reward, state.is_done())

    return Game(env.reset, env.step, seen)


def xminigrid(level: str) -> Game:
    """A level of XLand-MiniGrid; the step that ends an episode begins the next one."""
    import xminigrid as xm
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xm.make(f"MiniGrid-{level}")
    env = GymAutoResetWrapper(env)

    def seen(state: Any) -> Seen:
        return Seen(
            state.observation, state.state.agent.direction, state.reward, state.step_type == 2
        )

    return Game(partial(env.reset, params), partial(env.step, params), seen)


GAMES = {"navix": navix, "xminigrid": xminigrid}


def random_steps(game: Game, envs: int, devices: int, steps: int) -> Callable[[], int]:
    """Return a function that makes `steps` random steps in all environments and returns their number."""
    keys = jax.random.split(jax.random.key(0), envs).reshape(devices, -1)
    actions = np.random.default_rng(0).integers(ACTIONS, size=(devices, steps, envs // devices))
    states = jax.pmap(jax.vmap(game.reset))(keys)

    @jax.pmap
    def play(states: Any, actions: jax.Array) -> Any:
        def step(states: Any, action: jax.Array) -> tuple[Any, jax.Array]:
            states = jax.vmap(game.step)(states, action)
            return states, jax.vmap(game.seen)(states).reward.sum()

        return jax.lax.scan(step, states, actions)

    def run() -> int:
        nonlocal states
        states, _ = jax.block_until_ready(play(states, actions))
        return actions.size

    return run


def initial_weights(key: jax.Array, parts: int) -> dict[str, jax.Array]:
    """Return random weights of the network: the sizes of this project's, without the mission."""
    keys = iter(jax.random.split(key, 12))

    def drawn(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[0])

    cells = {
        f"cell{i}": 0.3 * jax.random.normal(next(keys), (CODES, CHANNELS)) for i in range(parts)
    }
    return cells | {
        "direction": drawn(4, HIDDEN), "input": drawn(VIEW * VIEW * CHANNELS, HIDDEN),
        "inner": drawn(HIDDEN, 3 * MEMORY), "inner_bias": jnp.zeros(3 * MEMORY),
        "memory": drawn(MEMORY, 3 * MEMORY), "memory_bias": jnp.zeros(MEMORY),
        "head": 0.01 * drawn(MEMORY, ACTIONS + 1), "skip": 0.01 * drawn(HIDDEN, ACTIONS + 1),
    }  # fmt: skip


def forward(
    weights: dict[str, jax.Array],
    view: jax.Array,
    direction: jax.Array,
    begins: jax.Array,
    memory: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return logits and value over T steps of S environments, [T, S, ACTIONS + 1], and the memory after them."""
    cells = sum(weights[f"cell{i}"][view[..., i]] for i in range(view.shape[-1]))
    flat = jax.nn.relu(cells).reshape(*view.shape[:2], -1)
    hidden = jax.nn.relu(flat @ weights["input"] + weights["direction"][direction])
    inner = hidden @ weights["inner"] + weights["inner_bias"]

    def gru(memory: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        gates, begin = now
        memory = jnp.where(begin[:, None], 0.0, memory)
        reset, update, new = jnp.split(gates, 3, -1)
        by_reset, by_update, by_new = jnp.split(memory @ weights["memory"], 3, -1)
        update = jax.nn.sigmoid(update + by_update)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + by_reset) * (by_new + weights["memory_bias"]))
        memory = (1 - update) * new + update * memory
        return memory, memory

    memory, memories = jax.lax.scan(gru, memory, (inner, begins))
    return memories @ weights["head"] + hidden @ weights["skip"], memory


def updates(game: Game, envs: int, devices: int, steps: int) -> Callable[[], int]:
    """Return a function that makes `steps` updates of recurrent PPO and returns the number of environment steps.

    The loss, passes and minibatches are those of this project's learner; gradients are averaged over devices.
    """
    own = envs // devices
    keys = jax.random.split(jax.random.key(0), envs).reshape(devices, own)
    states = jax.pmap(jax.vmap(game.reset))(keys)
    parts = jax.eval_shape(game.seen, jax.tree.map(lambda x: x[0, 0], states)).view.shape[-1]
    adam = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(3e-4, eps=1e-5))
    weights = initial_weights(jax.random.key(1), parts)
    copies = jax.tree.map(lambda x: jnp.stack([x] * devices), (weights, adam.init(weights)))
    memory, begins = jnp.zeros((devices, own, MEMORY)), jnp.ones((devices, own), bool)
    carry = (*copies, states, memory, begins, jax.random.split(jax.random.key(2), devices))

    def update(carry: Any, _: None) -> tuple[Any, jax.Array]:
        weights, moments, states, first, begins, key = carry
        key, for_actions, for_order = jax.random.split(key, 3)

        def act(now: Any, key: jax.Array) -> tuple[Any, Any]:
            states, memory, begins = now
            seen = jax.vmap(game.seen)(states)
            view = seen.view.astype(jnp.int32)
            output, memory = forward(
                weights, view[None], seen.direction[None], begins[None], memory
            )
            logits, value = output[0, :, :-1], output[0, :, -1]
            action = jax.random.categorical(key, logits)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            states = jax.vmap(game.step)(states, action)
            after = jax.vmap(game.seen)(states)
            step = (
                seen.view,
                seen.direction,
                begins,
                action,
                log_prob,
                value,
                after.reward,
                after.ended,
            )
            return (states, memory, after.ended), step

        keys = jax.random.split(for_actions, ROLLOUT)
        (states, memory, last), steps = jax.lax.scan(act, (states, first, begins), keys)
        views, directions, begins, actions, log_probs, values, rewards, ended = steps
        seen = jax.vmap(game.seen)(states)
        view = seen.view.astype(jnp.int32)
        after = forward(weights, view[None], seen.direction[None], last[None], memory)[0][0, :, -1]

        def backward(now: Any, step: Any) -> tuple[Any, jax.Array]:
            advantage, following = now
            reward, value, end = step
            delta = reward + GAMMA * jnp.where(end, 0.0, following) - value
            advantage = delta + GAMMA * LAMBDA * jnp.where(end, 0.0, advantage)
            return (advantage, value), advantage

        start = jnp.zeros_like(after), after
        _, advantages = jax.lax.scan(backward, start, (rewards, values, ended), reverse=True)
        returns = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-5)

        def loss(weights: Any, chosen: jax.Array) -> jax.Array:
            view = views[:, chosen].astype(jnp.int32)
            output, _ = forward(
                weights, view, directions[:, chosen], begins[:, chosen], first[chosen]
            )
            log = jax.nn.log_softmax(output[..., :-1])
            taken = jnp.take_along_axis(log, actions[:, chosen, None], 2)[..., 0]
            ratio, advantage = jnp.exp(taken - log_probs[:, chosen]), advantages[:, chosen]
            clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
            before, value, wanted = values[:, chosen], output[..., -1], returns[:, chosen]
            near = before + jnp.clip(value - before, -CLIP, CLIP)
            errors = jnp.maximum((value - wanted) ** 2, (near - wanted) ** 2)
            entropy = -(jnp.exp(log) * log).sum(-1)
            policy = -jnp.minimum(ratio * advantage, clipped)
            return (policy + VALUE_COEF * errors / 2 - ENTROPY_COEF * entropy).mean()

        def gradient_step(now: Any, chosen: jax.Array) -> tuple[Any, jax.Array]:
            weights, moments = now
            value, gradient = jax.value_and_grad(loss)(weights, chosen)
            if devices > 1:
                gradient = jax.lax.pmean(gradient, "devices")
            change, moments = adam.update(gradient, moments)
            return (optax.apply_updates(weights, change), moments), value

        order = jax.random.permutation(for_order, own).reshape(MINIBATCHES, -1)
        (weights, moments), losses = jax.lax.scan(gradient_step, (weights, moments), order)
        return (weights, moments, states, memory, last, key), losses.mean()

    train = jax.pmap(lambda carry: jax.lax.scan(update, carry, None, steps), "devices")

    def run() -> int:
        nonlocal carry
        carry, losses = jax.block_until_ready(train(carry))
        if not np.isfinite(losses).all():
            raise ValueError("the loss is not finite")
        return steps * envs * ROLLOUT

    return run


def navix_ppo(level: str, envs: int, steps: int) -> Callable[[], int]:
    """Return a function that trains with NAVIX's own PPO: two layers of 64 units, no memory, its defaults else."""
    import navix as nx
    from navix.agents import PPO, PPOHparams
    from navix.agents.models import ActorCritic

    def flat(state: Any) -> jax.Array:
        return nx.observations.symbolic_first_person(state).flatten()

    space = nx.spaces.Discrete.create(n_elements=256, shape=(VIEW * VIEW * 3,), dtype=jnp.uint8)
    env = nx.make(f"Navix-{level}-v0", observation_fn=flat, observation_space=space)
    frames = steps * envs * 128
    settings = PPOHparams(budget=frames, num_envs=envs)
    network = ActorCritic(action_dim=len(env.action_set))
    train = jax.jit(PPO(hparams=settings, network=network, env=env).train)

    def run() -> int:
        jax.block_until_ready(train(jax.random.key(0))[0].params)
        return frames

    return run


def made(settings: dict[str, Any]) -> Callable[[], int]:
    """Return the function to measure."""
    envs, devices, steps = settings["envs"], settings["devices"], settings["steps"]
    if settings["part"] == "own":
        return navix_ppo(settings["level"], envs, steps)
    game = GAMES[settings["library"]](settings["level"])
    function = random_steps if settings["part"] == "steps" else updates
    return function(game, envs, devices, steps)


def main() -> None:
    """Answer requests until stdin ends."""
    libraries = ("jax", *GAMES)
    print(json.dumps({name: version(name) for name in libraries}), flush=True)
    prepared: dict[str, Callable[[], int]] = {}
    for line in sys.stdin:
        answer = {}
        if line not in prepared:
            begin = time.perf_counter()
            run = made(json.loads(line))
            run()
            first = time.perf_counter() - begin
            begin = time.perf_counter()
            run()
            answer["compilation"] = first - (time.perf_counter() - begin)
            prepared[line] = run
        begin = time.perf_counter()
        count = prepared[line]()
        answer["rate"] = count / (time.perf_counter() - begin)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
