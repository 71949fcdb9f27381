"""What a world looks like; nothing here takes part in the physics."""


def add_materials(spec, look) -> None:
    """Adds the materials of a world."""


def add_scenery(spec, world, hinge_y) -> None:
    """Adds lights, floor and frame."""
