"""Two runs, the second one with the flags of the first and twice as many updates, after it."""

import argparse
from dataclasses import dataclass

from runcatalog import record
from runcatalog.guild import child_runs
from runcatalog.guild.child_runs import PlannedRun


@dataclass(frozen=True)
class Config(record.Config):
    updates: int = record.option(4, "updates of the first run", low=1)


def main(config: Config) -> dict:
    child_runs.require_guild("a pair", "guild run small:pairs")
    with record.start(config, study="small") as run:
        planned = [
            PlannedRun("small:train", name=name, flags={"updates": str(times * config.updates)})
            for name, times in (("first", 1), ("second", 2))
        ]
        runs = child_runs.run_plan(run, "pairs.json", planned)
        return run.finish({"metrics": {"runs": len(runs)}})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
