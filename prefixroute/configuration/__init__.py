"""A router's settings in a file or in environment variables.

>>> from prefixroute.configuration import read_environment
>>> environ = {"PREFIXROUTE_ENDPOINTS": "http://gpu-0:8000,http://gpu-1:8000"}
>>> [endpoint.url for endpoint in read_environment(environ).endpoints]
['http://gpu-0:8000/v1', 'http://gpu-1:8000/v1']

``Router.from_file`` and ``Router.from_env`` make a router of them; this is for who wants to look
first.
"""

from __future__ import annotations

from prefixroute.configuration.description import schema
from prefixroute.configuration.environment import read_environment
from prefixroute.configuration.reading import Configuration, read_file

__all__ = ["Configuration", "read_environment", "read_file", "schema"]
