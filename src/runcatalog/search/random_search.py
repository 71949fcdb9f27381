"""Random search, a Guild optimizer: `guild run OPERATION --optimizer random lr=[1e-4:1e-2]`."""

import argparse

from runcatalog.search import driver, options


def main() -> None:
    """Run the current Guild batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    options.add(parser, "random")
    arguments = parser.parse_args()
    batch = driver.current_batch()
    driver.run(batch, options.settings(arguments, "random", driver.seed_of(batch, arguments.seed)))


if __name__ == "__main__":
    driver.main(main)
