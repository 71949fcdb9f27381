"""Gaussian-process search, a Guild optimizer: `guild run OPERATION --optimizer gp lr=[1e-4:1e-2]`."""

from runcatalog.search import driver, options


def main() -> None:
    """Run the current Guild batch."""
    parser = options.Parser(description=__doc__)
    options.add(parser, "gp")
    arguments = parser.parse_args()
    batch = driver.current_batch()
    settings = options.settings(arguments, "gp", driver.seed_of(batch, arguments.seed))
    driver.run(batch, settings, arguments.prev_trials, arguments.parallel)


if __name__ == "__main__":
    driver.main(main)
