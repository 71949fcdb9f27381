"""Mean distance of runs that a flag names: by their ids, or `newest`, which is looked up."""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path

from runcatalog import record
from runcatalog.guild import finished_runs
from runcatalog.record.config import find_folder


@dataclass(frozen=True)
class Config(record.Config):
    runs: str = record.option("newest", "ids, or newest, separated by spaces")

    def look_up(self, directory: Path) -> list[Path]:
        """Return links to the runs."""
        links = []
        for word in self.runs.split():
            links.append(directory / "runs" / word)
            if not links[-1].exists():
                newest = finished_runs.newest_finished("small:train", {}) or word
                folder = find_folder(newest if word == "newest" else word)
                if folder is None:
                    raise record.UserError(f"--runs: no run {word}")
                links[-1].parent.mkdir(exist_ok=True)
                links[-1].symlink_to(os.path.relpath(folder, links[-1].parent.resolve()))
        return links


def main(config: Config) -> dict:
    with record.start(config, study="small") as run:
        results = [
            json.loads((link / "result.json").read_text()) for link in config.look_up(run.directory)
        ]
        values = [item["result"]["objective"]["value"] for item in results]
        run.event(
            f"{len(values)} of {len(list(Path(os.environ['GUILD_HOME'], 'runs').iterdir()))} runs"
        )
        objective = {"name": "distance", "value": sum(values) / len(values), "goal": "max"}
        return run.finish({"objective": objective})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
