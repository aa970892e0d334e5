"""Fuzzing: ``python -m tests.fuzz`` looks for new inputs, pytest runs those that were kept."""
