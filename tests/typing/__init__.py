"""Users' programs, for the type checkers: mypy --strict and pyright, here and against the wheel.

What must be an error has a ``type: ignore``, and both checkers refuse one that nothing needs.
"""
