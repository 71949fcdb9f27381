"""Command-line options of a search, shared by all ways to start one."""

import argparse
from typing import NoReturn

from runcatalog.search.core import ACQUISITIONS, Settings
from runcatalog.search.driver import PRIOR_MODES
from runcatalog.search.space import SearchError

# Options of the Gaussian-process search, by field of Settings.
_GP_OPTIONS = {
    "random_starts": {"type": int, "help": "initial points before the first fit"},
    "acq_func": {"choices": ACQUISITIONS, "help": "acquisition function"},
    "xi": {
        "type": float,
        "help": "minimum improvement for EI and PI [standard deviations of the objective]",
    },
    "kappa": {"type": float, "help": "weight of the predicted standard deviation in LCB [1]"},
}


class Parser(argparse.ArgumentParser):
    """Parser that raises SearchError for a wrong option, as for other mistakes in a search."""

    def error(self, message: str) -> NoReturn:
        """Raise the error; called by argparse."""
        raise SearchError(message.removeprefix("argument --"))


def add(parser: argparse.ArgumentParser, method: str) -> None:
    """Add the options of a search method to a parser."""
    if method == "gp":
        for name, option in _GP_OPTIONS.items():
            flag, default = f"--{name.replace('_', '-')}", getattr(Settings(), name)
            parser.add_argument(flag, default=default, **option)  # type: ignore[arg-type]
        parser.add_argument(
            "--prev-trials",
            choices=PRIOR_MODES,
            default="batch",
            help="results to use: of this batch, or also earlier ones of the same operation"
            " or the same source code",
        )
    parser.add_argument(
        "--parallel",
        type=int,
        default=None,
        help="trials that run at once (none: 1 here, as many as an engine has free places elsewhere)",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the search (none: Guild's random seed)"
    )


def settings(arguments: argparse.Namespace, method: str, seed: int) -> Settings:
    """Return settings from parsed options; raise SearchError for an invalid value."""
    if method != "gp":
        return Settings(method=method, seed=seed)
    return Settings(
        method=method, seed=seed, **{name: getattr(arguments, name) for name in _GP_OPTIONS}
    )
