"""Every SDK that takes the router, at its lowest and newest version: `python -m tests.sdk`."""
