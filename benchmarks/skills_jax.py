"""The engine of MiniGrid levels and PPO on it, against NAVIX and XLand-MiniGrid in JAX on the CPU; two cores each.

Steps with random actions, drawn beforehand, and recurrent PPO, beginnings of episodes included. The rows "best of"
compare the best batch size of each; XLA has one device on both cores or one a core, whichever is faster. PPO is the
same on both sides: network sizes, samples, minibatches and loss. NAVIX's own PPO has a smaller network without memory,
and a row of its own. Compilation is left out, and has rows of its own.

The levels are MiniGrid's, in NAVIX and XLand-MiniGrid by their own rules: views of 7 x 7 cells show what lies behind
walls, NAVIX begins an episode in a step of its own, XLand-MiniGrid's cells have no state. They draw a new level for
every episode; the engine copies one of 1,000 that were made before.

--jax names the Python of an environment that has both: `uv venv --python 3.11 DIR` and
`uv pip install --python DIR/bin/python navix xminigrid "jax[cpu]"`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# The project's root instead of this folder, whose scripts are called as the packages are.
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ |= THREADS

import numpy as np  # noqa: E402
from benchmarks import _report  # noqa: E402
from benchmarks.skills_training import Learning  # noqa: E402

from skills.learning.ppo import use_one_torch_thread  # noqa: E402
from skills.levels.engine import Engine  # noqa: E402
from skills.levels.minigrid.babyai import bank  # noqa: E402

CORES, ACTIONS, ROLLOUT = 2, 7, 32
WORKER = Path(__file__).with_name("_jax_engines.py")
PARTS = ("steps", "ppo", "own_ppo", "compilation")
LIBRARIES = {"navix": "NAVIX", "xminigrid": "XLand-MiniGrid"}
# Names in the libraries; NAVIX's other DoorKey begins in the same corner
LEVELS = {
    "DoorKey-8x8": {"navix": "DoorKey-Random-8x8", "xminigrid": "DoorKey-8x8"},
    "Empty-8x8": {"navix": "Empty-8x8", "xminigrid": "Empty-8x8"},
}
LEVEL = "DoorKey-8x8"  # of PPO and of the compilation
_COLD = """\
import time
import numpy as np
from skills.levels.engine import Engine
from skills.levels.minigrid.babyai import bank
levels = bank("MiniGrid-{level}-v0", range(10))
begin = time.perf_counter()
engine = Engine(levels, {envs})
engine.reset(np.arange({envs}))
engine.step(np.zeros({envs}, np.int64))
print(time.perf_counter() - begin)
"""


class Jax:
    """The process with JAX.

    Args:
        python: Its interpreter.

    Attributes:
        versions: Names with versions, by library.
    """

    def __init__(self, python: str) -> None:
        env = {name: value for name, value in os.environ.items() if name not in THREADS}
        env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={CORES}"
        self._process = subprocess.Popen(
            [python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        versions = self._read()
        jax = versions.pop("jax")
        self.versions = {
            name: f"{LIBRARIES[name]} {version}, JAX {jax}" for name, version in versions.items()
        }

    def measure(self, **settings: Any) -> dict[str, float]:
        """Return the rate, and after the first time with these settings the seconds of compilation."""
        assert self._process.stdin is not None
        print(json.dumps(settings), file=self._process.stdin, flush=True)
        return self._read()

    def rate(self, **settings: Any) -> float:
        """Return environment steps a second."""
        return self.measure(**settings)["rate"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self._process.args[0]} ended: see the lines above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Engines:
    """Steps of the engine, half of the environments in each of two threads."""

    def __init__(self, level: str, envs: int, samples: int) -> None:
        levels, own = bank(f"MiniGrid-{level}-v0", range(1000)), envs // CORES
        self._engines = [Engine(levels, own) for _ in range(CORES)]
        shape = CORES, max(1, samples // envs), own
        self._actions = np.random.default_rng(0).integers(ACTIONS, size=shape)
        for engine in self._engines:
            engine.reset(np.arange(own))

    def rate(self, threads: ThreadPoolExecutor) -> float:
        """Environment steps a second."""
        begin = time.perf_counter()
        list(threads.map(_play, self._engines, self._actions))
        return self._actions.size / (time.perf_counter() - begin)


def _play(engine: Engine, actions: np.ndarray) -> None:
    for each in actions:
        engine.step(each)


def compare(
    what: str,
    ours: dict[int, Callable[[], float]],
    peer: dict[int, Callable[[], float]],
    name: str,
    repeats: int,
) -> list[dict[str, Any]]:
    """Return a row for the best batch sizes, and one for each batch size that both have."""
    measures = {f"ours {size}": measure for size, measure in ours.items()}
    measures |= {f"peer {size}": measure for size, measure in peer.items()}
    rates = _report.alternate(measures, repeats)
    mine, theirs = (
        max(sizes, key=lambda size, side=side: median(rates[f"{side} {size}"]))
        for side, sizes in (("ours", ours), ("peer", peer))
    )
    row = partial(_report.row, unit="env steps/s", target=1)
    rows = [
        row(
            f"{what}, best of {', '.join(map(str, ours))} environments: {mine}",
            rates[f"ours {mine}"], rates[f"peer {theirs}"], peer_name=f"{name}, {theirs} environments",
        )
    ]  # fmt: skip
    return rows + [
        row(
            f"{what}, {size} environments",
            rates[f"ours {size}"],
            rates[f"peer {size}"],
            peer_name=name,
        )
        for size in sorted(set(ours) & set(peer))
    ]


def faster_devices(jax: Jax, **settings: Any) -> int:
    """Return whether a library is faster with one device on all cores, or with one a core."""
    return max((1, CORES), key=lambda devices: jax.measure(**settings, devices=devices)["rate"])


def step_rows(jax: Jax, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Random steps on all levels."""
    rows, threads = [], ThreadPoolExecutor(CORES)
    for level, names in LEVELS.items():
        ours = {
            size: partial(Engines(level, size, 10 * options.samples).rate, threads)
            for size in options.envs
        }
        for library, own_name in names.items():
            settings = {"part": "steps", "library": library, "level": own_name}
            sizes = {
                size: {**settings, "envs": size, "steps": max(1, options.samples // size)}
                for size in options.envs
            }
            devices = faster_devices(jax, **sizes[options.envs[len(options.envs) // 2]])
            peer = {
                size: partial(jax.rate, **each, devices=devices) for size, each in sizes.items()
            }
            for measure in (*ours.values(), *peer.values()):
                measure()  # compiles
            what = f"random actions, {level}"
            rows += compare(what, ours, peer, jax.versions[library], options.repeats)
    return rows


def updates_of(options: argparse.Namespace) -> dict[int, int]:
    """Return the updates of a turn, by number of environments."""
    return {size: max(1, options.samples // (size * ROLLOUT)) for size in options.ppo_envs}


def ppo_rates(options: argparse.Namespace) -> dict[int, Callable[[], float]]:
    """Return measures of this project's PPO, by number of environments."""
    use_one_torch_thread()
    levels, ours = bank(f"MiniGrid-{LEVEL}-v0", range(1000)), {}
    for size, updates in updates_of(options).items():
        learning = Learning(Engine, size, levels, size * ROLLOUT)
        ours[size] = partial(learning.rate, updates)
        learning.rate(1)
    return ours


def ppo_rows(jax: Jax, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Recurrent PPO, rollout, update and all."""
    ours, updates, rows = ppo_rates(options), updates_of(options), []
    for library, name in LEVELS[LEVEL].items():
        settings = {"part": "update", "library": library, "level": name}
        sizes = {
            size: {**settings, "envs": size, "steps": updates[size]} for size in options.ppo_envs
        }
        devices = faster_devices(jax, **sizes[options.ppo_envs[0]])
        peer = {size: partial(jax.rate, **each, devices=devices) for size, each in sizes.items()}
        for measure in peer.values():
            measure()
        what = f"recurrent PPO, {LEVEL}, {ROLLOUT} steps an update"
        rows += compare(what, ours, peer, f"{jax.versions[library]}, the same PPO", options.repeats)
    return rows


def own_ppo_rows(jax: Jax, options: argparse.Namespace) -> list[dict[str, Any]]:
    """NAVIX's own PPO, whose compilation takes minutes for each size."""
    ours = ppo_rates(options)
    own = {"part": "own", "level": LEVELS[LEVEL]["navix"], "devices": 1}
    peer = {
        size: partial(jax.rate, **own, envs=size, steps=max(1, options.samples // (size * 128)))
        for size in (16, *options.ppo_envs)
    }
    for measure in peer.values():
        measure()
    name = f"{jax.versions['navix']}, its own PPO without memory"
    return compare(f"recurrent PPO, {LEVEL}", ours, peer, name, options.repeats)[:1]


def compilation_rows(jax: Jax, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The first step, from an empty folder of compiled code."""
    envs = options.envs[0]
    with tempfile.TemporaryDirectory(prefix="numba-") as folder:
        code = _COLD.format(level=LEVEL, envs=envs)
        env = os.environ | {"NUMBA_CACHE_DIR": folder}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, stdout=subprocess.PIPE
        )
    rows = []
    for library, name in LEVELS[LEVEL].items():
        settings = {"part": "steps", "library": library, "level": name, "envs": envs, "steps": 2}
        seconds = jax.measure(**settings, devices=1)["compilation"]
        rows.append(
            _report.row(
                f"compilation before the first step, {LEVEL}", [float(run.stdout)], [seconds],
                peer_name=jax.versions[library], unit="s", target=None,
            )
        )  # fmt: skip
    return rows


def sizes(text: str) -> list[int]:
    """Return batch sizes from a list in a flag."""
    return [int(size) for size in text.split(",")]


def main() -> None:
    """Measure all in turn and write the result."""
    parser = _report.parser(__doc__)
    parser.add_argument(
        "--jax", default="", metavar="PYTHON", help="that has NAVIX and XLand-MiniGrid"
    )
    parser.add_argument(
        "--envs", type=sizes, default="64,1024,16384", help="batch sizes of the steps"
    )
    parser.add_argument("--ppo-envs", type=sizes, default="128,1024", help="batch sizes of PPO")
    parser.add_argument(
        "--samples",
        type=int,
        default=262_144,
        help="steps of a turn; of the engine ten times these",
    )
    _report.add_parts(parser, PARTS)
    options = parser.parse_args()
    if not options.jax:
        print(
            "nothing is measured: --jax PYTHON names an environment with NAVIX and XLand-MiniGrid"
        )
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    jax = Jax(options.jax)
    measures = {
        "steps": step_rows, "ppo": ppo_rows, "own_ppo": own_ppo_rows, "compilation": compilation_rows,
    }  # fmt: skip
    for part in options.parts:
        rows = measures[part](jax, options)
        _report.report_part("skills_jax", part, PARTS, rows, dry_run=options.dry_run)
    jax.close()


if __name__ == "__main__":
    main()
