"""/v1/completions and what else the `openai` client, unmodified, asks for; and langchain-openai."""

import json

import httpx
import openai
import pytest
import torch
from running import LM, MODELS, error, language_model, running, went_on

from elman.data.vocabulary import BOUNDARY


def test_models(client):
    assert {one.id for one in client.models.list()} == {"book", "gru"}
    assert client.models.retrieve("book").id == "book"


def test_a_completion_is_the_text_of_the_library(client):
    found = client.completions.create(model="book", prompt="Once", max_tokens=20, seed=7)
    assert found.choices[0].text == LM.generate("Once", seed=7, max_new_tokens=20)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.prompt_tokens == 4 and found.usage.completion_tokens == 20


def test_several_prompts_and_choices_share_one_reading(client, server):
    before = server.service.engine.steps
    found = client.completions.create(
        model="book", prompt=["Once", "It was"], max_tokens=8, n=3, seed=7, temperature=0.5
    )
    texts = [choice.text for choice in found.choices]
    wanted = [
        LM.generate(prompt, seed=7 + i, max_new_tokens=8, temperature=0.5)
        for prompt in ("Once", "It was")
        for i in range(3)
    ]
    assert texts == wanted and [choice.index for choice in found.choices] == [0, 1, 2, 3, 4, 5]
    assert server.service.engine.steps - before == 4 + 6 + 6 * 8


def test_a_prompt_and_its_biases_are_prepared_once_however_many_texts_follow(server, client, monkeypatch):
    served, split = server.service.model("book"), []
    ids = served._ids
    monkeypatch.setattr(served, "_ids", lambda given: split.append(given) or ids(given))
    bias = {"33": 3.0, "033": 1.0, "40": -100.0}  # of a token that is named twice, both
    found = client.completions.create(model="book", prompt=["Once", "It"], max_tokens=9, n=5, seed=7, logit_bias=bias)
    assert split == ["Once", "It"]
    alone = [
        client.completions.create(
            model="book", prompt=prompt, max_tokens=9, seed=7 + i, logit_bias={"33": 4.0, "40": -100.0}
        )
        for prompt in ("Once", "It")
        for i in range(5)
    ]
    assert [choice.text for choice in found.choices] == [one.choices[0].text for one in alone]


def test_tokens_as_a_prompt_echo_and_logprobs(client):
    tokens = LM.vocabulary.encode("Once upon").tolist()
    asked = {"model": "book", "prompt": tokens, "echo": True, "logprobs": 2, "temperature": 0}
    read = client.completions.create(**asked, max_tokens=0).choices[0]
    assert read.text == "Once upon"
    assert sum(read.logprobs.token_logprobs) == pytest.approx(-LM.score("Once upon")[0].nats, abs=1e-4)
    choice = client.completions.create(**asked, max_tokens=3).choices[0]
    assert choice.text == "Once upon" + LM.generate("Once upon", max_new_tokens=3, temperature=0)
    assert choice.logprobs.token_logprobs[:9] == read.logprobs.token_logprobs
    assert len(choice.logprobs.tokens) == 12 and all(len(top) <= 2 for top in choice.logprobs.top_logprobs)
    # What was chosen at temperature 0 is the most probable.
    for lp, top in zip(choice.logprobs.token_logprobs[9:], choice.logprobs.top_logprobs[9:], strict=True):
        assert lp == max(top.values())


def test_a_stream_is_the_same_text_in_pieces(client):
    whole = client.completions.create(model="book", prompt="Once", max_tokens=20, seed=3, n=2)
    pieces = ["", ""]
    usage = None
    for chunk in client.completions.create(
        model="book", prompt="Once", max_tokens=20, seed=3, n=2, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces[choice.index] += choice.text
    assert pieces == [choice.text for choice in whole.choices] and usage.completion_tokens == 40


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_not_part_of_the_text(client, stream):
    text = LM.generate("Once", seed=3, max_new_tokens=40)
    stop = text[10:13]
    found = client.completions.create(model="book", prompt="Once", max_tokens=40, seed=3, stop=[stop], stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in found]
        got, reason = "".join(choice.text for choice in chunks), chunks[-1].finish_reason
    else:
        got, reason = found.choices[0].text, found.choices[0].finish_reason
    assert got == text[: text.index(stop)] and reason == "stop"


def test_a_beam_search_is_that_of_the_library(client):
    lm, prompts = language_model(), ["Once upon", "It"]
    more = {"extra_body": {"num_beams": 4, "return_state": True}, "max_tokens": 9}
    found = client.completions.create(model="book", prompt=prompts, n=2, **more)
    assert [found.choices[i].text for i in (0, 2)] == [lm.generate(p, num_beams=4, max_new_tokens=9) for p in prompts]
    assert found.choices[1].text not in ("", found.choices[0].text) and found.usage.completion_tokens == 36
    (whole,) = client.completions.create(model="book", prompt="It", stream=True, **more)
    assert whole.choices[0].text == found.choices[2].text
    state = {"state": found.choices[2].state, "num_beams": 4}
    rest = client.completions.create(model="book", prompt="", max_tokens=5, extra_body=state).choices[0].text
    start = lm.start("It", num_beams=4, max_new_tokens=9)
    list(start)
    assert rest == lm.generate("", state=start.state, num_beams=4, max_new_tokens=5)


def test_biases_and_penalties(client):
    greedy = {"model": "book", "prompt": "Once", "max_tokens": 12, "temperature": 0}
    never = client.completions.create(**greedy, logit_bias={"97": 100})
    token = LM.vocabulary.decode([97])
    assert never.choices[0].text == token * 12
    again = client.completions.create(**greedy, logit_bias={"97": 3}, frequency_penalty=2, presence_penalty=2)
    assert again.choices[0].text != token * 12


@pytest.mark.parametrize("settings", [
    {"temperature": 0.3}, {"top_p": 0.4}, {"top_k": 3}, {"repetition_penalty": 1.7},
    {"top_k": 90, "top_p": 0.8, "temperature": 1.5},
])  # fmt: skip
def test_settings_are_those_of_the_library(server, settings):
    wanted = LM.generate("Once", seed=7, max_new_tokens=12, **settings)
    body = {"model": "book", "prompt": "Once", "max_tokens": 12, "seed": 7, **settings}
    assert server.post("/v1/completions", body).json()["choices"][0]["text"] == wanted
    path = f"/v1/sessions/{server.session('book', seed=7)}/generate"
    body = {"version": 0, "prompt": "Once", "max_new_tokens": 12, **settings}
    assert server.post(path, body).json()["text"] == wanted != LM.generate("Once", seed=7, max_new_tokens=12)


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 0.5), (-1.0, 0.75)])
def test_penalties_are_subtracted_for_what_was_written_here(client, presence, frequency):
    """Step by step, offline: one of them once, the other as often as the symbol was written. Prompts do not count."""
    bias, prompt, written = {98: 1.5, 99: 1.0}, LM.vocabulary.encode("aaabbb").tolist(), []
    for _ in range(12):
        with torch.no_grad():
            said, _ = LM.model.scan(torch.tensor([[BOUNDARY, *prompt, *written]]))
        logits = said.logits[0, -1].double()
        for symbol, value in bias.items():
            logits[symbol] += value
        for symbol in set(written):
            logits[symbol] -= presence + frequency * written.count(symbol)
        logits[BOUNDARY] = -torch.inf
        written.append(int(logits.argmax()))
    assert len(set(written)) > 1
    found = client.completions.create(
        model="book", prompt=prompt, max_tokens=12, temperature=0, presence_penalty=presence,
        frequency_penalty=frequency, logit_bias={str(symbol): value for symbol, value in bias.items()},
    )  # fmt: skip
    assert found.choices[0].text == LM.vocabulary.decode([*prompt, *written])[len(prompt) :]


def test_a_carried_state_goes_on_and_cannot_be_changed(client, server):
    first = client.completions.create(
        model="book", prompt="Once", max_tokens=5, seed=7, extra_body={"return_state": True}
    ).choices[0]
    state = first.model_extra["state"]
    more = (
        client.completions.create(model="book", prompt=" upon", max_tokens=5, seed=8, extra_body={"state": state})
        .choices[0]
        .text
    )
    assert more == went_on("Once", " upon", 8, seed=7, max_new_tokens=5)
    for wrong in (state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB"), "", "?", "A" * 100, "é"):
        with pytest.raises(openai.UnprocessableEntityError):
            client.completions.create(model="book", prompt="", max_tokens=1, extra_body={"state": wrong})
    session = server.session("book", state=state, seed=8)
    text = server.post(f"/v1/sessions/{session}/generate", {"version": 0, "prompt": " upon", "max_new_tokens": 5})
    assert text.json()["text"] == more


@pytest.mark.slow
def test_silent_retries(server):
    """The client sends again what failed to come through: with its own key, which it sends each time."""
    answers = []

    class Flaky(httpx.HTTPTransport):
        def handle_request(self, request):
            answer = super().handle_request(request)
            answer.read()
            answers.append((request.headers.get("idempotency-key"), json.loads(answer.content)["id"]))
            if len(answers) == 1:
                raise httpx.ReadError("the answer was lost")
            return answer

    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=2, http_client=httpx.Client(transport=Flaky())
    )
    found = client.responses.create(
        model="book", input="Hi", max_output_tokens=4, extra_headers={"Idempotency-Key": "retry"}
    )
    assert len(answers) == 2 and answers[0] == answers[1] and found.id == answers[0][1]


def test_there_is_no_chat(client, server):
    with pytest.raises(openai.NotFoundError, match="no chat"):
        client.chat.completions.create(model="book", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.BadRequestError, match="roles"):
        client.responses.create(model="book", input=[{"role": "user", "content": "Hi"}])


def test_errors_are_those_the_client_knows(client, server):
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.completions.create(model="none", prompt="x")
    for body in ({"n": 0}, {"temperature": -1}, {"top_p": 0}, {"prompt": [999]}, {"prompt": [["x"]]},
                 {"num_beams": 2, "n": 3}, {"num_beams": 2, "temperature": 0.5},
                 {"logit_bias": {"x": 1}}, {"logit_bias": {"999": 1}}, {"prompt": []}):  # fmt: skip
        answer = server.post("/v1/completions", {"model": "book", "prompt": "x", **body})
        assert answer.status_code == 400, (body, answer.text)
    assert server.post("/v1/completions", {"model": "gru", "prompt": "x"}).status_code == 400
    assert error(server.post("/v1/completions", {"model": "book", "prompt": "x", "n": "2"}))["param"] == "n"


def test_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    llm = langchain.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="book", max_tokens=8, temperature=0, seed=1
    )
    assert llm.invoke("Once") == LM.generate("Once", max_new_tokens=8, temperature=0)
    assert "".join(llm.stream("Once")) == LM.generate("Once", max_new_tokens=8, temperature=0)


def test_a_beam_search_takes_null_for_what_is_not_set():
    with running(MODELS) as server:
        body = {"model": "book", "prompt": "Hi", "num_beams": 2, "max_tokens": 3, "temperature": None, "top_p": None}
        assert server.post("/v1/completions", body).status_code == 200


def test_log_probabilities_of_an_answer_have_an_end():
    """64 prompts of 65,536 tokens with 20 each would be an answer of gigabytes."""
    with running(MODELS) as server:
        body = {"model": "book", "prompt": ["x" * 65_000] * 60, "max_tokens": 0, "echo": True, "logprobs": 20}
        answer = server.post("/v1/completions", body)
        assert answer.status_code == 400 and "logprobs" in error(answer)["message"]
