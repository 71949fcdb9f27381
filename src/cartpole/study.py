"""Policy gradients on CartPole: a grid of configurations, each with many seeds, in one run.

A flag that takes several values, separated by blanks, is a dimension of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cartpole.policy_gradient.options import BudgetConfig, PolicyGradientConfig, widths
from runcatalog import record
from runcatalog.record import option

if TYPE_CHECKING:
    from cartpole.policy_gradient.reinforce import Setting
    from cartpole.policy_gradient.workers import Outcome, Piece

DIMENSIONS = ("algo", "lr", "gamma", "entropy", "normalise_returns", "reset")
TOLD = 15.0  # s between two lines on the terminal
RECENT = 60.0  # s over which the speed is taken: rounds take longer once the poles stand


@dataclass(frozen=True)
class Config(BudgetConfig):
    """Flags of `pg:compare`, `pg:entropy`, `pg:lr`, `pg:gamma`, `pg:variants`, `pg:seeds`, `pg:fastest`."""

    algo: str = option("vpg mean value rloo", "algorithms, see cartpole.algorithms")
    lr: str = option("0.001", "Adam's step sizes [1], range (0, 1]; source: 1e-3")
    gamma: str = option("0.99", "discount factors [1], range [0, 1]; source: 0.99")
    entropy: str = option("0", "entropy coefficients [1]; source: 0, and 0.001 with its bonus")
    normalise_returns: str = option(
        "no", "standardise the advantages of an update: no, yes, or both"
    )
    reset: str = option(
        "fixed", "fixed: one start state for all episodes (source); random; or both"
    )
    seeds: int = option(
        20, "seeds of each configuration, from `seed` on; source: 1", low=1, high=1000
    )
    processes: int = option(0, "processes; 0: one a core", low=0, high=256, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        configurations(self)


def configurations(config: Config) -> dict[str, PolicyGradientConfig]:
    """The grid's points by name, each with the first seed.

    Raises:
        UserError: A value is wrong, or there is none.
    """
    columns = [_words(name, getattr(config, name)) for name in DIMENSIONS]
    for name, column in zip(DIMENSIONS, columns, strict=True):
        if not column:
            raise record.UserError(f"--{name.replace('_', '-')}: no value")
    kinds = {field.name: field.type for field in fields(PolicyGradientConfig)}
    shared = {field.name: getattr(config, field.name) for field in fields(BudgetConfig)}
    shared.pop("resume")
    varied = [name for name, column in zip(DIMENSIONS, columns, strict=True) if len(column) > 1]
    found = {}
    for words in itertools.product(*columns):
        point = dict(zip(DIMENSIONS, words, strict=True))
        values = {n: _number(n, w) if kinds[n] == "float" else w for n, w in point.items()}
        found[_name(point, varied)] = PolicyGradientConfig(**shared, **values)
    return found


def _words(name: str, text: str) -> list[str]:
    if name == "normalise_returns":
        text = text or "no"  # Guild passes a false value as an empty text
    return list(dict.fromkeys(text.split()))


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise record.UserError(f"--{name}: {word!r} is no number") from None


def _name(point: dict[str, str], varied: list[str]) -> str:
    """The name of a grid's point: "rloo", "value lr 0.0008", "vpg normalised random"."""
    parts = [point["algo"]]
    for name in varied:
        value = point[name]
        if name in ("lr", "gamma", "entropy"):
            parts.append(f"{name} {value}")
        elif name == "normalise_returns":
            parts += ["normalised"] if value.lower() in ("yes", "true", "1", "on") else []
        elif name == "reset":
            parts.append(value)
    return " ".join(parts)


def main(config: Config) -> dict[str, Any]:
    """Trains all configurations with all seeds, and returns what the record says."""
    from cartpole.policy_gradient import figures
    from cartpole.policy_gradient import summary as results
    from cartpole.policy_gradient.workers import divide, train

    with record.start(config, study="cartpole") as run:
        points = configurations(config)
        processes = config.processes or len(os.sched_getaffinity(0))
        pieces = divide(pieces_of(config, points), processes)
        runs = sum(len(piece.settings) for piece in pieces)
        run.event(
            f"{len(points)} configurations x {config.seeds} seeds = {runs} runs, "
            f"{len(pieces)} batches on {min(processes, len(pieces))} processes"
        )
        outcomes = train(pieces, processes, run.directory / "pieces", Teller(run))
        summaries = [
            results.summary(name, point, lengths_of(config, point, outcomes))
            for name, point in points.items()
        ]
        results.log(run, summaries)
        results.write(run, summaries, config.seed)
        figures.draw(run, summaries)
        run.digest_weights(weights(points, config, outcomes))
        return run.finish(results.result_of(summaries))


def pieces_of(config: Config, points: dict[str, PolicyGradientConfig]) -> list[Piece]:
    """One batch for all runs with the same number of episodes per update."""
    from cartpole.policy_gradient.workers import Piece

    batches: dict[tuple[int, int], list[Setting]] = {}
    for point in points.values():
        key = (point.batch, point.update_count)
        batches.setdefault(key, []).extend(settings_of(config, point))
    hidden = widths(config.hidden)
    return [Piece(tuple(each), hidden, *key) for key, each in batches.items()]


def settings_of(config: Config, point: PolicyGradientConfig) -> list[Setting]:
    """One run a seed."""
    from dataclasses import replace

    return [replace(point.setting, seed=config.seed + i) for i in range(config.seeds)]


def lengths_of(
    config: Config, point: PolicyGradientConfig, outcomes: dict[Setting, Outcome]
) -> Any:
    """Episode lengths [seeds, N] of a configuration, N its budget in episodes."""
    import numpy as np

    of_all = [outcomes[setting].lengths for setting in settings_of(config, point)]
    return np.stack(of_all)[:, : point.episode_count]


def weights(
    points: dict[str, PolicyGradientConfig], config: Config, outcomes: dict[Setting, Outcome]
) -> dict[str, Any]:
    """All final policies, for the digest."""
    import numpy as np

    return {
        f"{name}.{key}": np.stack([outcomes[s].policy[key] for s in settings])
        for name, settings in ((n, settings_of(config, p)) for n, p in points.items())
        for key in outcomes[settings[0]].policy
    }


class Teller:
    """Tells progress and the time that is left, at most every TOLD seconds.

    Args:
        run: The run.
    """

    def __init__(self, run: record.Run) -> None:
        self._run = run
        self._seen: deque[tuple[float, float]] = deque()
        self._told = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        self._seen.append((now, share))
        while now - self._seen[0][0] > RECENT:
            self._seen.popleft()
        self._run.progress(round(100 * share, 1), 100, "per cent")
        if now - self._told > TOLD:
            self._told = now
            self._run.event(f"{100 * share:.0f} % of the updates{self._left(share)}")

    def _left(self, share: float) -> str:
        (since, before), (now, _) = self._seen[0], self._seen[-1]
        if share <= before:
            return ""
        seconds = (1 - share) * (now - since) / (share - before)
        return f", about {int(seconds // 60)} min {int(seconds % 60):02d} s left"


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
