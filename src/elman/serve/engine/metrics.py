"""What Prometheus reads. The engine counts; this says it in Prometheus' words when it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from elman.serve.engine.engine import Engine

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Requests by route and status, how long they took, and what the engine counts."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("elman_requests", "Requests answered", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "elman_request_seconds", "From head to last byte", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self.registry.register(_EngineMetrics(engine))
        self._found: dict[
            tuple[str, int], tuple[Counter, Histogram]
        ] = {}  # to look labels up takes longer than to count

    def count(self, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        found = self._found.get((route, status))
        if found is None:
            found = self.requests.labels(route, str(status)), self.seconds.labels(route)
            self._found[route, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self.registry)


class _EngineMetrics:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        engine = self.engine
        for name, value, meaning in (
            ("elman_ticks", engine.ticks, "Ticks of the engine"),
            ("elman_inputs", engine.steps, "Inputs read or made"),
            ("elman_commits", engine.commits, "Commits of the store"),
            ("elman_commit_failures", engine.failures, "Commits that failed"),
        ):
            yield CounterMetricFamily(name, meaning, value)
        yield GaugeMetricFamily("elman_waiting", "Requests that are not answered yet", engine.waiting)
        yield GaugeMetricFamily(
            "elman_sessions", "Sessions and stored responses", sum(list(engine.sessions.counts.values()))
        )
