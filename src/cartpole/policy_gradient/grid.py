"""Grid of configurations: a flag with several values, separated by spaces, is a dimension of the grid."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from cartpole.policy_gradient.options import BudgetConfig, PolicyGradientConfig
from runcatalog import record
from runcatalog.record import option

DIMENSIONS = ("algo", "lr", "gamma", "entropy", "normalise_returns", "reset")


@dataclass(frozen=True)
class GridConfig(BudgetConfig):
    """Flags that span a grid."""

    algo: str = option("vpg mean value rloo", "algorithms, see cartpole.policy_gradient.reinforce")
    lr: str = option("0.001", "Adam's step sizes [1], range (0, 1]; source: 1e-3")
    gamma: str = option("0.99", "discount factors [1], range [0, 1]; source: 0.99")
    entropy: str = option("0", "entropy coefficients [1]; source: 0, and 0.001 with its bonus")
    normalise_returns: str = option(
        "no", 'standardise the advantages of an update: no, yes, or "no yes"'
    )
    reset: str = option(
        "fixed", 'fixed: one start state for all episodes (source); random; or "fixed random"'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        configurations(self)


def configurations(config: GridConfig) -> dict[str, PolicyGradientConfig]:
    """Return the grid's points by name, with the first seed.

    Raises:
        UserError: A value is invalid, missing, or given twice.
    """
    columns = [_values(name, getattr(config, name)) for name in DIMENSIONS]
    for name, column in zip(DIMENSIONS, columns, strict=True):
        if not column:
            raise record.UserError(f"--{record.config.flag_name(name)}: no value")
    types = {field.name: field.type for field in fields(PolicyGradientConfig)}
    shared = {field.name: getattr(config, field.name) for field in fields(BudgetConfig)}
    shared.pop("resume")
    varied = [name for name, column in zip(DIMENSIONS, columns, strict=True) if len(column) > 1]
    names: dict[PolicyGradientConfig, str] = {}
    for words in itertools.product(*columns):
        point = dict(zip(DIMENSIONS, words, strict=True))
        values = {n: _number(n, w) if types[n] == "float" else w for n, w in point.items()}
        name, configuration = _name(point, varied), PolicyGradientConfig(**shared, **values)
        if configuration in names:
            raise record.UserError(f"{names[configuration]!r} and {name!r} are one configuration")
        names[configuration] = name
    return {name: configuration for configuration, name in names.items()}


def references(points: Mapping[str, PolicyGradientConfig]) -> dict[str, str]:
    """Return, for every point that has one, the point of the same algorithm with the source's values of all flags.

    RLOO over time steps, the source's formula, with these values is compared with RLOO over episodes, its code.
    """
    source = {field.name: field.default for field in fields(PolicyGradientConfig)}
    varied = [name for name in DIMENSIONS if name != "algo"]
    at_source = {
        point.algo: name
        for name, point in points.items()
        if all(getattr(point, flag) == source[flag] for flag in varied)
    }
    found = {
        name: at_source[point.algo]
        for name, point in points.items()
        if at_source.get(point.algo, name) != name
    }
    if at_source.keys() >= {"rloo", "rloo_step"}:
        found[at_source["rloo_step"]] = at_source["rloo"]
    return found


def _values(name: str, text: str) -> list[str]:
    if name == "normalise_returns":
        text = text or "no"  # Guild passes a false value as an empty text
    return list(dict.fromkeys(text.split()))


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise record.UserError(f"--{name}: {word!r} is no number") from None


def _name(point: Mapping[str, str], varied: Sequence[str]) -> str:
    """Return a point's name: "rloo", "value lr 0.0008", "vpg normalised random"."""
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
