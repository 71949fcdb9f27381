"""Levels of the study: stages, cells and missions as numbers, the compiled engine, reward shaping and a solver."""
