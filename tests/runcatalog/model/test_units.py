"""Units of metrics, as guild.yml declares them."""

from runcatalog.model.project import Project


def test_names_precede_patterns_and_operations_precede_defaults(project):
    (project.experiments / "toy/guild.yml").write_text(
        "- model: toy\n"
        "  operation-defaults:\n"
        "    units: {'length/*': steps, length/first: s, '*': m}\n"
        "  operations:\n"
        "    train: {main: src/toy.train}\n"
        "    other: {main: src/toy.train, units: {rate: kg}}\n"
        "    wrong: {main: src/toy.train, units: 3}\n"
    )
    operations = Project(project.root).operations()
    names = ("length/first", "length/last", "rate")
    units = {name: [operation.unit(n) for n in names] for name, operation in operations.items()}
    assert units == {
        "toy:train": ["s", "steps", "m"],
        "toy:other": ["", "", "kg"],
        "toy:wrong": ["", "", ""],
    }
