from __future__ import annotations

import pickle

import pytest

from prefixroute import errors
from prefixroute.errors import PrefixrouteError, Saturated, UnknownEndpointError


def test_every_name_is_exported_sorted_and_in_one_tree() -> None:
    assert sorted(errors.__all__) == errors.__all__
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), PrefixrouteError)


def test_a_message_reads_as_it_was_written() -> None:
    assert str(UnknownEndpointError("no endpoint 'x'")) == "no endpoint 'x'"
    assert str(UnknownEndpointError()) == ""


def test_builtin_bases_let_usual_handlers_work() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.UnknownEndpointError, KeyError)
    assert issubclass(errors.UnsupportedClientError, TypeError)
    assert issubclass(errors.RouterClosedError, RuntimeError)


@pytest.mark.parametrize("seconds", [0.5, 60.0])
def test_saturated_says_when_to_come_back_also_after_pickling(seconds: float) -> None:
    error = pickle.loads(pickle.dumps(Saturated("full", retry_after_s=seconds)))
    assert (str(error), error.retry_after_s) == ("full", seconds)
