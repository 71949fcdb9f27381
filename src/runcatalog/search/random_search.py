"""Random search, a Guild optimizer: `guild run OPERATION --optimizer random lr=[1e-4:1e-2]`."""

from runcatalog.search import driver, options


def main() -> None:
    """Run the current Guild batch."""
    parser = options.Parser(description=__doc__)
    options.add(parser, "random")
    arguments = parser.parse_args()
    batch = driver.current_batch()
    settings = options.settings(arguments, "random", driver.seed_of(batch, arguments.seed))
    driver.run(batch, settings, parallel=arguments.parallel)


if __name__ == "__main__":
    driver.main(main)
