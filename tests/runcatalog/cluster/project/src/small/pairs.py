"""Two runs, the second one from the checkpoint of the first, with twice as many updates."""

import argparse
from dataclasses import dataclass

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun


@dataclass(frozen=True)
class Config(record.Config):
    updates: int = record.option(4, "updates of the first run", low=1)
    pause: float = record.option(0.0, "seconds after an update", low=0)


def main(config: Config) -> dict:
    child_runs.require_guild("a pair", "guild run small:pairs")
    with record.start(config, study="small") as run:
        flags = {"seed": str(config.seed), "every": "2", "pause": str(config.pause)}
        first, second = ({**flags, "updates": str(times * config.updates)} for times in (1, 2))
        planned = [
            PlannedRun("small:train", name="first", flags=first),
            PlannedRun("small:further", name="second", flags=second, after={"previous": "first"}),
        ]
        runs = child_runs.run_plan(run, "pairs.json", planned)
        return run.finish({"metrics": {"runs": len(runs)}})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
