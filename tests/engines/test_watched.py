"""Tokens of watched requests only, and nothing else about a sample changes by being watched."""

from __future__ import annotations

import pytest

from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Request
from resetcli.policy.settings import PolicySettings


@pytest.mark.parametrize("policy", [{"name": "fixed"}, {"name": "reset", "tau_0": 2.0, "tau_0_source": "option"}])
def test_only_watched_requests_are_told_of(tiny_model_dir, policy) -> None:
    engine = open_engine(EngineOptions(path=tiny_model_dir, device="cpu", batch_size=3))
    settings = PolicySettings(**policy)
    prompt = tuple(engine.encode_chat([{"role": "user", "content": "Count to nine."}]))

    def run(watched: set[str], on_token=None):
        requests = [Request(str(i), prompt, i, 6 + 5 * i, ignore_eos=True, watched=str(i) in watched) for i in range(5)]
        return {d.request_id: d for d in engine.generate(requests, settings, on_token=on_token)}

    events: list = []
    plain, told = run(set()), run({"1", "4"}, events.append)
    assert {i: (d.token_ids, d.text) for i, d in plain.items()} == {i: (d.token_ids, d.text) for i, d in told.items()}
    assert {e.request for e in events} == {"1", "4"}
    for name in ("1", "4"):
        mine = [e for e in events if e.request == name]
        assert [e.token_id for e in mine] == told[name].token_ids and [e.t for e in mine] == list(range(len(mine)))
        assert all(e.entropy is not None and e.logprob is not None for e in mine)
        assert all((e.step is None) == (policy["name"] == "fixed") for e in mine)
    engine.close()
