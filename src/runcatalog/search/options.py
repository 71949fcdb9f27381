"""Command-line options of a search, shared by all ways to start one."""

import argparse

from runcatalog.search.core import ACQUISITIONS, Settings
from runcatalog.search.driver import PRIOR_MODES


def add(parser: argparse.ArgumentParser, method: str) -> None:
    """Add the options of a search method to a parser."""
    if method == "gp":
        defaults = Settings()
        parser.add_argument(
            "--random-starts",
            type=int,
            default=defaults.random_starts,
            help="initial points before the first fit",
        )
        parser.add_argument(
            "--acq-func",
            choices=ACQUISITIONS,
            default=defaults.acq_func,
            help="acquisition function",
        )
        parser.add_argument(
            "--xi",
            type=float,
            default=defaults.xi,
            help="improvement that EI and PI ask for [standard deviations of the objective]",
        )
        parser.add_argument(
            "--kappa",
            type=float,
            default=defaults.kappa,
            help="weight of the predicted standard deviation in LCB [1]",
        )
        parser.add_argument(
            "--prev-trials",
            choices=PRIOR_MODES,
            default="batch",
            help="whose results count: this batch's, or also earlier ones of the same operation"
            " or the same source code",
        )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of the search (none: Guild's random seed)"
    )


def settings(arguments: argparse.Namespace, method: str, seed: int) -> Settings:
    """Return settings from parsed options; raise SearchError for an invalid value."""
    if method != "gp":
        return Settings(method=method, seed=seed)
    return Settings(
        method=method,
        random_starts=arguments.random_starts,
        acq_func=arguments.acq_func,
        xi=arguments.xi,
        kappa=arguments.kappa,
        seed=seed,
    )
