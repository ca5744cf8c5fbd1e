"""The lm-eval adapter over a protocol double: order, repeats, seeds, templates, windows."""

from __future__ import annotations

import itertools
import math

import pytest
from evaluation_double import FIXED, SeededEngine, fake_logprob
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.base.seeds import sample_seed
from resetcli.evaluation.lm import ResetLM


def instance(prompt, doc_id, repeats=1, task="t", doc=None, idx=0, kind="generate_until", **gen):
    args = (prompt, {"until": [], **gen}) if kind == "generate_until" else prompt
    return Instance(kind, doc or {"q": doc_id}, args, idx, (task, doc_id, repeats))


def test_it_is_registered() -> None:
    assert get_model("reset") is ResetLM
    with pytest.raises(UsageError, match="pretrained"):
        ResetLM()


def test_order_repeats_and_seeds(tiny_tokenizer) -> None:
    """lm-eval sends each repeat as the same object, consecutively; answers come back in that order."""
    engine = SeededEngine(tiny_tokenizer)
    lm = ResetLM(engine=engine, settings=FIXED, seed=7)
    docs = [instance(f"Prompt {i}", i, 3, doc={"doc_id": f"id{i}"} if i else {}) for i in range(3)]
    outputs = lm.generate_until([d for d in docs for _ in range(3)])
    wanted = [("t", 0 if not i else f"id{i}", r) for i in range(3) for r in range(3)]
    by_id = {request.request_id: request for request in engine.requests}
    assert len(engine.requests) == 9
    for (task, doc_id, repeat), output in zip(wanted, outputs, strict=True):
        request = by_id[f"{task}/{doc_id}/{repeat}"]
        assert request.seed == sample_seed(7, task, doc_id, repeat)
        assert output == engine.answer(request).text and output.finish_reason == engine.answer(request).finish_reason


def test_limits_and_stops_reach_the_engine(tiny_tokenizer) -> None:
    engine = SeededEngine(tiny_tokenizer, context=64)
    lm = ResetLM(engine=engine, settings=FIXED, max_gen_toks=50)
    lm.generate_until([
        instance("Hi", 0, until=["\n\n", "Q:"], max_new_tokens=7), instance("Hi", 1), instance("Hi", 2, max_tokens=999),
    ])  # fmt: skip
    by_id = {request.request_id: request for request in engine.requests}
    room = 64 - len(by_id["t/2/0"].prompt_ids)
    assert by_id["t/0/0"].max_new_tokens == 7 and by_id["t/0/0"].stop == ("\n\n", "Q:")
    assert by_id["t/1/0"].max_new_tokens == min(50, room)
    assert by_id["t/2/0"].max_new_tokens == room


def test_a_prompt_without_room_is_not_cut(tiny_tokenizer) -> None:
    engine = SeededEngine(tiny_tokenizer, context=30)
    requests = [instance("word " * 50, 0), instance("word", 1)]
    output, _ = ResetLM(engine=engine, settings=FIXED).generate_until(requests)
    assert output == "" and output.finish_reason == "length" and len(engine.requests) == 1
    with pytest.raises(ResetError, match="task t: 1 of 1 prompt does not fit the model's context of 30 tokens"):
        ResetLM(engine=engine, settings=FIXED).generate_until(requests[:1])


@pytest.mark.parametrize("which", ["tiny_tokenizer", "tiny_bos_tokenizer"])
def test_the_template_once_and_one_bos(which, request) -> None:
    tokenizer = request.getfixturevalue(which)
    engine = SeededEngine(tokenizer)
    lm = ResetLM(engine=engine, settings=FIXED)
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt = lm.apply_chat_template(messages)
    lm.generate_until([instance(prompt, 0)])
    ids = list(engine.requests[0].prompt_ids)
    assert ids == engine.encode_chat(messages)
    if tokenizer.bos_token_id is not None:
        assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids).count("What is 2 + 3?") == 1


def test_a_begun_answer_is_left_open(tiny_tokenizer) -> None:
    lm = ResetLM(engine=SeededEngine(tiny_tokenizer), settings=FIXED)
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "The answer is"}]
    assert lm.apply_chat_template(messages, add_generation_prompt=False).endswith("The answer is")


def test_without_a_template_the_text_goes_plain(tiny_bos_tokenizer) -> None:
    import copy

    tokenizer = copy.deepcopy(tiny_bos_tokenizer)
    tokenizer.chat_template = None
    engine = SeededEngine(tokenizer)
    lm = ResetLM(engine=engine, settings=FIXED)
    prompt = lm.apply_chat_template([{"role": "user", "content": "Hello"}])
    lm.generate_until([instance(prompt, 0)])
    assert prompt == "Hello" and list(engine.requests[0].prompt_ids) == engine.encode("Hello")
    assert engine.requests[0].prompt_ids.count(tokenizer.bos_token_id) == 1


def test_nan_without_a_recorder_is_an_error(tiny_tokenizer) -> None:
    lm = ResetLM(engine=SeededEngine(tiny_tokenizer, broken=("t/0/0",)), settings=FIXED)
    with pytest.raises(ResetError, match="NaN here"):
        lm.generate_until([instance("Hi", 0)])


def test_a_task_temperature_is_not_silently_dropped(tiny_tokenizer) -> None:
    reporter = CollectingReporter()
    lm = ResetLM(engine=SeededEngine(tiny_tokenizer), settings=FIXED, reporter=reporter)
    lm.generate_until([instance("Hi", 0, temperature=0.9, do_sample=True), instance("Hi", 1, temperature=0.9)])
    assert reporter.warnings == ["task t asks for temperature 0.9; policy fixed decides"]


@pytest.mark.parametrize("window", [2, 3, 8, 1000])
def test_rolling_scores_each_token_once(tiny_bos_tokenizer, window) -> None:
    """The double's log-probability needs one token of context, so every window must give the same sum."""
    lm = ResetLM(engine=SeededEngine(tiny_bos_tokenizer), settings=FIXED, max_length=window)
    text = "First add two and three.\n\nThe sum is five."
    ids = [tiny_bos_tokenizer.bos_token_id, *tiny_bos_tokenizer(text, add_special_tokens=False)["input_ids"]]
    wanted = sum(fake_logprob(a, b) for a, b in itertools.pairwise(ids))
    (found,) = lm.loglikelihood_rolling([instance((text,), 0, kind="loglikelihood_rolling")])
    assert found == pytest.approx(wanted, rel=1e-12)


def test_loglikelihood_of_a_continuation(tiny_tokenizer) -> None:
    lm = ResetLM(engine=SeededEngine(tiny_tokenizer), settings=FIXED)
    ((found, greedy),) = lm.loglikelihood([instance(("The sum is ", "five, so"), 0, kind="loglikelihood")])
    ids = tiny_tokenizer("The sum is five, so")["input_ids"]
    start = len(tiny_tokenizer("The sum is")["input_ids"])
    assert found == pytest.approx(sum(fake_logprob(ids[i - 1], ids[i]) for i in range(start, len(ids)))) and greedy
    ((alone, _),) = lm.loglikelihood([instance(("", "five"), 0, kind="loglikelihood")])
    assert math.isfinite(alone) and alone < 0


def test_thoughts_end_where_the_model_ends_them(tiny_tokenizer, tmp_path) -> None:
    """A model's own markers reach scoring through lm-eval's command as well, and arguments come before them."""
    from dataclasses import replace

    from resetcli.evaluation.tasks.build import process_math

    (tmp_path / "added_tokens.json").write_text('{"[THINK]": 1, "[/THINK]": 2}')
    text = r"[THINK]Perhaps \boxed{7}.[/THINK]So it is \boxed{8}.<end>The answer is 9."

    class Thinker(SeededEngine):
        def answer(self, request):
            return replace(super().answer(request), text=text, finish_reason="stop")

    engine = Thinker(tiny_tokenizer)
    engine.info = replace(engine.info, path=str(tmp_path))
    for arguments, keys in (({}, "8"), ({"think_end_token": "<end>"}, "9")):
        lm = ResetLM(engine=engine, settings=FIXED, **arguments)
        (output,) = lm.generate_until([instance("Hi [THINK]", 0)])
        assert output.opened_in_prompt
        for target in "789":
            score = process_math({"target": target, "alt_answers": []}, [output])
            assert score == {"exact_match": float(target in keys)}
