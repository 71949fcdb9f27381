"""Figures of agents and animations."""
