"""``prefixroute check``, on simulated engines and on what real ones answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from prefixroute import Endpoint, Router
from prefixroute.cli.app import app
from prefixroute.cli.check import Checked
from prefixroute.cli.measure import Measured
from prefixroute.cli.probe import Found, look
from prefixroute.core.usage import Usage
from prefixroute.testing import Disconnect, EngineModel, FakeCluster, Refuse, Status

FAST = EngineModel(prefill_tokens_per_s=1e6)
ENDPOINT = Endpoint("http://gpu-0:8000")


def check(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200", **(env or {})})


def found_at(*arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = check(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return cast("list[dict[str, Any]]", json.loads(result.stdout)["endpoints"])


def prompts(cluster: FakeCluster) -> list[str]:
    return [
        json.loads(request.body)["messages"][0]["content"]
        for request in cluster.requests
        if request.method == "POST"
    ]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster(2, model=FAST, time_scale=1.0)
    with made.serve():
        yield made


def served(cluster: FakeCluster) -> list[str]:
    return [replica.served_url or "" for replica in cluster.replicas]


def test_what_answers_and_what_does_not_are_told(cluster: FakeCluster) -> None:
    up, down = served(cluster)
    cluster.fail(1, Refuse())
    one, other = found_at(up, down, exit_code=1)
    assert one["reachable"] is True
    assert one["error"] is None
    assert one["models"] == ["simulated-model"]
    assert one["prefix_caching"] is True
    assert one["reports_cached_tokens"] is True
    assert one["prompt_tokens"] > 1000
    assert 0.9 * one["prompt_tokens"] < one["cached_tokens"] < one["prompt_tokens"]
    assert (one["reports_load"], one["running"], one["waiting"]) == (True, 0, 0)
    assert other["reachable"] is False
    assert other["error"].startswith("ConnectError")
    result = check(up, down)
    assert result.exit_code == 1
    assert "simulated-model" in result.stdout
    row = next(line for line in result.stdout.splitlines() if line.startswith(down))
    assert row.split() == [down, "unreachable"]
    assert f"{down}: ConnectError" in result.stdout


def test_a_cold_prompt_takes_its_prefill_and_a_warm_one_does_not() -> None:
    slow = EngineModel(prefill_tokens_per_s=1000.0)
    with FakeCluster(1, model=slow, time_scale=1.0).serve() as urls:
        (one,) = found_at(urls[0], "--tokens", "500")
    assert one["ttft_cold_s"] > 0.5
    assert one["ttft_warm_s"] < one["ttft_cold_s"]


def test_every_check_has_prompts_of_its_own(cluster: FakeCluster) -> None:
    url = served(cluster)[0]
    found_at(url)
    found_at(url)
    short, cold, warm, *again = prompts(cluster)
    assert len(short) < 300 < len(cold)
    assert cold == warm
    assert len({prompt[:8] for prompt in (short, cold, again[0], again[1])}) == 4


def test_a_cache_that_is_off_is_told() -> None:
    with FakeCluster(1, model=EngineModel(cache_blocks=0), time_scale=0.01).serve() as urls:
        (one,) = found_at(*urls)
        assert "off" in check(*urls).stdout
    assert one["prefix_caching"] is False
    assert one["cached_tokens"] == 0
    assert one["advice"] == ["prefixes are not cached"]


def test_counts_that_are_not_told_are_told_so() -> None:
    model = EngineModel(reports_cached_tokens=False)
    with FakeCluster(1, model=model, time_scale=0.01).serve() as urls:
        (one,) = found_at(*urls)
    assert one["reports_cached_tokens"] is False
    assert one["cached_tokens"] is None
    assert one["advice"] == ["its replies do not tell cached tokens, and the engine is not known"]


def test_a_short_context_is_given_a_shorter_prompt() -> None:
    with FakeCluster(1, model=EngineModel(context_tokens=900), time_scale=0.01).serve() as urls:
        (one,) = found_at(*urls)
    assert 300 < one["prompt_tokens"] < 900


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Status(code=500), "answers 500 to /chat/completions"),
        (Status(code=404), "answers 404 to /chat/completions"),
        (Status(code=429), "answers 429 to /chat/completions"),
        (Disconnect(), "RemoteProtocolError in /chat/completions"),
    ],
    ids=str,
)
def test_what_does_not_generate_is_told(cluster: FakeCluster, fault: Any, said: str) -> None:
    cluster.fail(0, fault)
    (one,) = found_at(served(cluster)[0], exit_code=1)
    assert one["reachable"] is True
    assert one["error"].startswith(said)
    assert one["ttft_cold_s"] is None


def test_nothing_is_generated_if_you_say_so(cluster: FakeCluster) -> None:
    (one,) = found_at(served(cluster)[0], "--no-generate")
    assert one["ttft_cold_s"] is None
    assert one["prefix_caching"] is None
    assert prompts(cluster) == []


def test_keys_are_sent_and_never_shown(tmp_path: Path) -> None:
    secret = "sk-secret-4711"
    with FakeCluster(1, model=EngineModel(api_key=secret), time_scale=0.01).serve() as urls:
        refused = check(*urls)
        assert refused.exit_code == 1
        assert "it wants a key, give --api-key-env" in refused.stdout
        result = check(*urls, "--api-key-env", "KEY", env={"KEY": secret})
        assert result.exit_code == 0, result.output
        assert secret not in result.output
        path = tmp_path / "prefixroute.toml"
        path.write_text(f'[[endpoints]]\nurl = "{urls[0]}"\napi_key_env = "KEY"\n')
        result = check("--config", str(path), env={"KEY": secret})
        assert result.exit_code == 0, result.output


def test_what_cannot_be_checked_is_refused() -> None:
    for arguments in ([], ["gpu-0"], ["http://a", "--api-key-env", "NOT_SET_4711"]):
        assert check(*arguments).exit_code == 2, arguments


# -- what engines say of themselves -----------------------------------------------------------


class Answers:
    """A router whose endpoint answers what is in a table, and 404 else."""

    def __init__(self, **answers: object) -> None:
        self._answers = {
            f"/{path.replace('__', '/')}": body if isinstance(body, str) else json.dumps(body)
            for path, body in answers.items()
        }

    def ask(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        body = self._answers.get(path)
        return (404, b"{}") if body is None else (200, body.encode())


def looked(**answers: object) -> Found:
    return look(cast("Router", Answers(**answers)), ENDPOINT, timeout_s=1.0)


def listed(owner: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "llama", "object": "model", "owned_by": owner}]}


def vllm_metrics(caching: str) -> str:
    return (
        "# TYPE vllm:cache_config_info gauge\n"
        f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{caching}",x="1"}} 1.0\n'
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'
    )


@pytest.mark.parametrize(
    ("answers", "engine", "version", "caching"),
    [
        (
            {"metrics": vllm_metrics("True"), "version": {"version": "0.11.0"}},
            "vLLM", "0.11.0", True,
        ),
        ({"metrics": vllm_metrics("False")}, "vLLM", None, False),
        ({"metrics": vllm_metrics("None")}, "vLLM", None, None),
        (
            {"server_info": {"version": "0.5.4", "disable_radix_cache": True}},
            "SGLang", "0.5.4", False,
        ),
        (
            {"get_server_info": {"version": "0.4.1", "disable_radix_cache": False}},
            "SGLang", "0.4.1", True,
        ),
        ({"props": {"build_info": "b6000-abc"}}, "llama.cpp", "b6000-abc", None),
        (
            {"info": {"version": "3.0.0", "model_id": "m", "max_total_tokens": 4096}},
            "TGI", "3.0.0", None,
        ),
    ],
)  # fmt: skip
def test_engines_are_told_apart(
    answers: dict[str, object], engine: str, version: str | None, caching: bool | None
) -> None:
    owner = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llamacpp", "TGI": "m"}[engine]
    found = looked(v1__models=listed(owner), **answers)
    assert found.error is None
    assert found.engine is not None
    assert (found.engine.name, found.version, found.caching) == (engine, version, caching)
    assert found.models == ("llama",)
    if "metrics" in answers:
        assert found.load is not None
        assert (found.load.running, found.load.waiting) == (3, 2)
    else:
        assert found.load is None


@pytest.mark.parametrize("models", ["no JSON", "[]", '{"data": 5}', '{"data": [5]}'])
def test_what_is_no_engine_does_not_raise(models: str) -> None:
    found = looked(v1__models=models)
    assert found == Found()


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        ("vllm", ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-log"]),
        ("sglang", ["--disable-radix-cache", "--enable-cache-report", "--enable-metrics"]),
        ("llamacpp", ["--no-cache-prompt", "newer llama-server", "--metrics"]),
    ],
)  # fmt: skip
def test_the_flag_of_what_is_missing_is_named(owner: str, told: list[str]) -> None:
    found = looked(v1__models=listed(owner), server_info={"disable_radix_cache": True})
    untold = Measured(cold_s=1.0, warm_s=1.0, usage=Usage(prompt_tokens=100))
    off = Measured(cold_s=1.0, warm_s=1.0, usage=Usage(prompt_tokens=100, cached_tokens=0))
    said = [
        *Checked(endpoint=ENDPOINT, found=found, measured=off).advice,
        *Checked(endpoint=ENDPOINT, found=found, measured=untold).advice,
    ]
    for flag in told:
        assert any(flag in line for line in said), said


def test_a_count_says_more_than_a_setting_and_that_more_than_a_time() -> None:
    on, silent = Found(caching=True), Found()
    fast = Measured(cold_s=1.0, warm_s=0.1, usage=Usage())
    same = Measured(cold_s=1.0, warm_s=0.9, usage=Usage())
    none = Measured(cold_s=1.0, warm_s=0.1, usage=Usage(prompt_tokens=100, cached_tokens=0))
    for found, measured, caching in (
        (on, none, False), (on, same, True), (silent, fast, True), (silent, same, None),
    ):  # fmt: skip
        assert Checked(endpoint=ENDPOINT, found=found, measured=measured).caching is caching
