"""Write a file and print its path in parts, as a slow terminal shows it."""

import argparse
import sys
import time
from dataclasses import dataclass

from runcatalog import record


@dataclass(frozen=True)
class Config(record.Config):
    fails: bool = record.option(False, "end with an exception that names the file")


def main(config: Config) -> dict:
    with record.start(config, study="small") as run:
        file = run.artifact("report.txt")
        file.write_text("report")
        for part in f"written to {file}\n".partition(run.id):
            print(part, end="", flush=True)
            time.sleep(1)
        print(f"at {file.resolve()}", file=sys.stderr)
        if config.fails:
            raise RuntimeError(f"{file} cannot be read")
        return run.finish({"metrics": {"bytes": file.stat().st_size}})


if __name__ == "__main__":
    record.run_script(main, Config, argparse.ArgumentParser(description=__doc__))
