"""Starts four simulated replicas on loopback and keeps them until interrupted."""

import time
from contextlib import suppress

from prefixroute.testing import FakeCluster

with FakeCluster(4).serve() as urls:
    print(f"export ENDPOINTS={','.join(urls)}", flush=True)
    with suppress(KeyboardInterrupt):
        time.sleep(24 * 3600)
