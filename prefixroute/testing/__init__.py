"""Simulated engines, to test an application or a router without a GPU.

    from prefixroute.testing import EngineModel, FakeCluster, Hang, RateLimited

    cluster = FakeCluster(4, model=EngineModel(output_tokens=32), time_scale=0)
    http = httpx.Client(transport=cluster.transport())           # or async_transport()
    http.post(cluster.urls[0] + "/chat/completions", json={"messages": [...]})

    with FakeCluster(4, time_scale=0.1).serve() as urls:         # real sockets, real SDKs
        client = OpenAI(base_url=urls[0], api_key="-")

    cluster.fail(0, RateLimited(retry_after_s=2), times=1)       # the next generation only
    cluster.fail(1, Hang())                                      # until cluster.heal(1)
    cluster.stop(2)                                              # dies, and cluster.start(2)

    assert [request.replica for request in cluster.requests] == [0, 1, 0]
    print(cluster.hit_rate, cluster.replicas[0].stats())

The mock transports serve httpx and httpx2, sync and async, asyncio and trio, and need no socket.
`serve()` listens on loopback ports, from a thread of its own. `FakeCluster.requests` holds what
arrived, byte for byte; every reply names its replica in the header `x-replica`, and in
`system_fingerprint` where the API has that.

**What is modelled.** Each replica has a prefix cache of its own: the prompt is rendered as a chat
template would (tools, system prompt, turns), cut into tokens of `bytes_per_token` bytes and those
into blocks, and whole blocks are found by what they and all before them contain. The least
recently used block is evicted first, of a chain its end first. A full hit still computes the last
block. Prefill is a queue, first come first served: a request waits for those before it, then takes
`request_overhead_s`, and `prefill_tokens_per_s` for the tokens that aren't cached. Decoding runs
beside it, one token each `decode_s_per_token`, at most `max_running` requests at once. The answer
is cached too, so the next turn of a chat finds it. A caller who goes away stops the computing,
and the prefill not yet done is given back. So time to first token falls with the hit rate and
rises with the queue, as with a real engine, and a hit rate is exact for the cache described.

**What is not.** Decoding doesn't slow down with the batch, nor does prefill slow it down (no
chunked prefill, no preemption); running requests don't pin blocks, so a cache much smaller than
what is in flight looks better than it is; all prompts prefill at one speed, whatever their length;
tokens are bytes, not a vocabulary; a picture or a sound is 256 tokens; there is no network between
caller and engine. Sampling parameters, `stop`, `logprobs` and `echo` are ignored. So figures from
here compare ways of placing requests; they don't predict what a given GPU will do.

**What is answered.** `/v1/chat/completions`, `/v1/completions`, `/v1/responses` and Anthropic's
`/v1/messages`, each as one document or as events; `/v1/messages/count_tokens`, `/v1/embeddings`,
`/v1/models`, `/tokenize`, `/health`, and `/metrics` under vLLM's names. A text answer is made-up
words; the same prompt has the same answer on every replica. With `tool_choice` "required" or a
named tool it is a call with the smallest arguments that the tool's schema allows, with a JSON
`response_format` the smallest document. Usage says how many tokens were cached; where Anthropic's
API does, `input_tokens` leaves them out. Headers of a stream come at once, its first event with
the first token (`/v1/responses` announces itself before). `endpoint-load-metrics-format` is
answered as vLLM does. A replica remembers its own response ids, and answers 404 to
`previous_response_id` of another's.

**Time.** All times of `EngineModel` are simulated seconds; `time_scale` says how many real seconds
one takes. With `time_scale=0` nothing sleeps: simulated time jumps to whatever a reply waits for,
so that one caller sees the same times as ever in `FakeCluster.now_s`, while callers side by side
see little of each other's queue. A reply that is never read to its end then stays `running`: a
good way to find streams that nobody closed. Mock transports keep the read timeout of a request; at
a scale of 0 they count it in simulated seconds, and raise at once.

**Faults**, for `FakeCluster.fail`. Those marked * strike every request, health checks too, the
others only what generates (chat, completions, responses, messages, embeddings).

| fault | what happens |
|---|---|
| `Refuse()` * | connections are refused, idle ones closed; running streams go on |
| `Loading(retry_after_s=)` * | 503 "Loading model" |
| `Hang()` * | requests are taken, and not answered until healed |
| `RateLimited(retry_after_s=)` | 429 |
| `Status(code=, headers=, body=)` | that status |
| `SlowHeaders(delay_s=)` | headers come late; the engine works meanwhile |
| `CutAfter(chunks=, reset=)` | the connection breaks after so many events |
| `ErrorFirst()` | 200, and the first event is an error; without a stream 500 |
| `Disconnect(reset=)` | the connection closes after the request, before any reply |
| `StaleConnection()` * | a kept-alive connection closes under its next request |

A mock transport raises what the library would: ConnectError when refused, RemoteProtocolError when
a connection closes, ReadError when it is reset, ReadTimeout after the request's own timeout.
"""

from prefixroute.testing.asserts import (
    assert_all_finished,
    assert_hit_rate,
    assert_same_endpoint,
    assert_spread,
    endpoint_of,
)
from prefixroute.testing.cluster import FakeCluster
from prefixroute.testing.engine import Admission, Engine, EngineStats, RenderedPrompt
from prefixroute.testing.factory import ClusterFactory
from prefixroute.testing.faults import (
    CutAfter,
    Disconnect,
    ErrorFirst,
    Fault,
    Hang,
    Loading,
    RateLimited,
    Refuse,
    SlowHeaders,
    StaleConnection,
    Status,
)
from prefixroute.testing.model import EngineModel
from prefixroute.testing.replica import Replica
from prefixroute.testing.server import ClusterServer
from prefixroute.testing.transports import AsyncFakeTransport, FakeTransport
from prefixroute.testing.wire import ReceivedRequest

__all__ = [
    "Admission",
    "AsyncFakeTransport",
    "ClusterFactory",
    "ClusterServer",
    "CutAfter",
    "Disconnect",
    "Engine",
    "EngineModel",
    "EngineStats",
    "ErrorFirst",
    "FakeCluster",
    "FakeTransport",
    "Fault",
    "Hang",
    "Loading",
    "RateLimited",
    "ReceivedRequest",
    "Refuse",
    "RenderedPrompt",
    "Replica",
    "SlowHeaders",
    "StaleConnection",
    "Status",
    "assert_all_finished",
    "assert_hit_rate",
    "assert_same_endpoint",
    "assert_spread",
    "endpoint_of",
]
