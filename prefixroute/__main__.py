"""``python -m prefixroute``."""

from prefixroute.cli import main

main()
