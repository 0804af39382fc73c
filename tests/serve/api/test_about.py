"""What the server says of itself: health, readiness, metrics, models, its page."""

from running import MODELS, error, running

from elman.serve.api import about


def test_what_it_says_of_itself(server):
    assert server.client.get("/readyz").json() == {"status": "ready"}
    from prometheus_client.parser import text_string_to_metric_families

    families = {one.name: one for one in text_string_to_metric_families(server.client.get("/metrics").text)}
    assert families["elman_ticks"].samples[0].value > 0 and "elman_requests" in families
    found = {one["id"]: one for one in server.client.get("/v1/models").json()["data"]}
    assert found["gru"]["state_bytes"] == 128 and found["book"]["writes"] is True


def test_readiness_passes_through_engine_and_store_at_most_once_a_second(capsys):
    with running(MODELS) as server:
        ticks = lambda: server.service.engine.steps  # noqa: E731
        before = ticks()
        for _ in range(20):
            assert server.client.get("/readyz").status_code == 200
        assert 0 < ticks() - before <= 4
        server.service.readiness.at = 0.0
        server.service.engine.sessions.store.commit = broken
        answer = server.client.get("/readyz")
        assert answer.status_code == 503 and "store" in error(answer)["message"]
        assert "it is gone" not in answer.text and server.client.get("/readyz").status_code == 503
        assert capsys.readouterr().err.count("it is gone") == 1  # whoever asks without a key need not know why
        del server.service.engine.sessions.store.commit
        assert server.client.get("/readyz").status_code == 200
        server.service.engine.draining = True
        assert server.client.get("/readyz").status_code == 503
        assert server.client.get("/healthz").status_code == 200
        assert server.post("/v1/sessions", {"model": "gru"}).status_code == 503


def broken(sync):
    from elman.serve.store.store import StoreFailed

    raise StoreFailed("it is gone")


# The page, and curl
def test_the_page_asks_nobody_else():
    with running(MODELS) as server:
        for path in about.FILES:
            answer = server.client.get(path)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "http://" not in answer.text and "https://" not in answer.text and 'src="//' not in answer.text
