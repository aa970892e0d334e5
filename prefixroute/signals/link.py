"""The connection to Redis or Valkey: made when it is needed, dropped whole when anything fails."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from prefixroute.core.checks import refusal

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisClusterException, RedisError
    from redis.retry import Retry
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "RedisFleet needs redis: pip install 'prefixroute[redis]'", name=error.name
    ) from error

__all__ = ["LOSSES", "Client", "Connect", "Link", "connector", "shown_server"]

Client: TypeAlias = "redis.Redis | redis.RedisCluster"
Connect: TypeAlias = Callable[[], Client]

LOSSES: Final = (RedisError, RedisClusterException, OSError)
"""What a server that is not there, slow, or refuses raises."""

_SCHEMES: Final = ("redis", "rediss", "unix")
_SCRIPT: Final = files("prefixroute.signals").joinpath("beat.lua").read_text(encoding="utf-8")
_SHA: Final = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


def shown_server(url: str) -> str:
    """Return what may be shown of a server's URL: no user, no password, no query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "Redis"
    return f"{parts.scheme}://{host}{port}{parts.path}"


def connector(url: str, *, cluster: bool, timeout_s: float) -> Connect:
    """Return what makes a client of this URL.

    Raises:
        ConfigurationError: It is no URL of a server.
    """
    rule = "a URL such as redis://host:6379/0, rediss:// for TLS or unix:// for a socket"
    if urlsplit(url).scheme not in _SCHEMES:
        raise refusal("RedisFleet", "url", shown_server(url), rule)
    settings: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),  # the next turn is the retry
    }
    kind: Any = redis.RedisCluster if cluster else redis.Redis
    try:
        redis.ConnectionPool.from_url(url)  # connects to nothing
    except (ValueError, TypeError):
        raise refusal("RedisFleet", "url", shown_server(url), rule) from None
    return lambda: kind.from_url(url, **settings)


class Link:
    """One client and its subscription.

    Args:
        connect: Makes the client.
        channel: What is listened to.
    """

    def __init__(self, connect: Connect, channel: str) -> None:
        self._connect, self._channel = connect, channel
        self._client: Any = None
        self._pubsub: Any = None
        self.commands = self.bytes = 0

    def command(self, *parts: str | bytes | int) -> Any:
        """Send a command and return the answer.

        Raises:
            RedisError: One of :data:`LOSSES`.
        """
        self._open()
        answer = self._client.execute_command(*parts)
        self.commands += 1
        self.bytes += sum(map(_size, parts)) + _size(answer)
        return answer

    def script(self, keys: list[str], *arguments: str | bytes | int) -> Any:
        """Run beat.lua; load it where the server does not have it (any more)."""
        given = (len(keys), *keys, *arguments)
        try:
            return self.command("EVALSHA", _SHA, *given)
        except NoScriptError:
            return self.command("EVAL", _SCRIPT, *given)

    def listen(self, timeout_s: float) -> bytes | None:
        """Return the next message of the channel, or ``None`` after ``timeout_s``."""
        self._open()
        message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=timeout_s)
        data = message.get("data") if message is not None else None
        if not isinstance(data, bytes):
            return None
        self.bytes += len(data)
        return data

    def _open(self) -> None:
        if self._client is None:
            self._client = self._connect()
            if self._client.get_encoder().decode_responses:
                rule = "a function that returns a client without decode_responses"
                raise refusal("RedisFleet", "url", self._connect, rule)
            self._pubsub = self._client.pubsub()
            self._pubsub.subscribe(self._channel)

    def close(self) -> None:
        """Close the client, if there is one; the next command makes another."""
        client, pubsub, self._client, self._pubsub = self._client, self._pubsub, None, None
        for one in (pubsub, client):
            if one is not None:
                try:
                    one.close()
                except LOSSES:
                    continue

    def forked(self) -> None:
        """Leave the parent's sockets to it."""
        self._client = self._pubsub = None


def _size(part: object) -> int:
    if isinstance(part, list | tuple):
        return sum(map(_size, part))
    return len(part) if isinstance(part, bytes | str) else len(str(part))
