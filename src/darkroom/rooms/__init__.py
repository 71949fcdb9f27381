"""Dark rooms: one with gymnasium's interface, many as arrays, and their optimal and random returns."""
