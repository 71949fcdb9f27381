"""Runs on other machines: shipped there, mirrored home while they run, continued elsewhere when a machine dies."""
