"""A fork shares no connection and no count with its parent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefixroute.testing import FakeCluster


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("when", ["unused", "used"])
def test_case_44_a_router_that_was_made_before_a_fork(when: str) -> None:
    with FakeCluster(2, time_scale=0).serve() as urls:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.transports.forking", when, *urls],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
