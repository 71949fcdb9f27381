"""Validation, result tables and pages of dialogues."""
