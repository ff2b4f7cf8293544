"""Service limits and origins as options of the command line."""

from __future__ import annotations

import pytest

from headrace.cli.serve import _parse_origin
from headrace.errors import HeadraceError
from headrace.service.admission import ServiceLimits


def test_limits_are_set_by_name():
    limits = ServiceLimits().with_overrides(["readers=20", "patience_s=0.5", "latency_s=2"])
    assert (limits.readers, limits.patience_s, limits.latency_s) == (20, 0.5, 2.0)
    assert limits.queries == ServiceLimits().queries


@pytest.mark.parametrize(
    "word", ["reader=20", "readers", "readers=", "readers=many", "readers=1.5", "readers=0", "patience_s=nan"]
)
def test_invalid_limits_are_refused(word: str):
    with pytest.raises(HeadraceError, match=word.partition("=")[0]):
        ServiceLimits().with_overrides([word])


def test_origins_are_parsed_as_scheme_host_and_port():
    assert _parse_origin("https://board.example:8443/") == "https://board.example:8443"
    for origin in ("*", "board.example", "https://", "https://board.example/page", "ftp://board.example", "https://*.example"):
        with pytest.raises(HeadraceError, match="invalid origin"):
            _parse_origin(origin)
