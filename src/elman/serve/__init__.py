"""A server for models with state. `elman serve` is its command; nothing in here knows a task by name.

The path of a request, which is the order in which to read:

    json.py               JSON: its types, and how it is written
    errors.py             what is refused: a status, and OpenAI's error object
    limits.py             every limit, in one table

    store/store.py        the interface of a store and what it promises; the store in memory
    store/sqlite.py       the store in a file
    store/records.py      what is kept: a session, a checkpoint, inputs, a response, a key with its reply
    store/past.py         checkpoints and logged inputs, for rollbacks; clock.py: what time it is
    store/ledger.py       what each tenant keeps
    store/sessions.py     sessions over a store: versions, idempotency, expiry
    store/signing.py      states that clients carry

    engine/job.py         what a request asks of the engine
    engine/engine.py      owns the models and the store, in ticks: it takes what waits, steps it, commits, replies
    engine/turns.py       whose turn it is; crowd.py: how much each may have; groups.py: what a model does in a tick
    engine/driver.py      runs the ticks: short ones on the event loop, what takes long in a thread
    engine/jobs.py        the jobs that sessions need; steps.py: steps; text_jobs.py: texts
    engine/workers.py     long computations outside the engine, in a few threads
    engine/metrics.py     what Prometheus reads

    net/keys.py           who a request comes from
    net/accounts.py       what each tenant has open, and how many bytes are in memory for it
    net/protocol.py       one connection: how long a request may take to arrive, and an answer to be read
    net/frames.py         one socket: messages that arrive together are read together, a piece in a turn

    api/bodies.py         the JSON of requests, as types: checked where it is parsed; answers.py: that of answers
    api/context.py        one request and its answer
    api/routes.py         the routes; their handlers: completions.py, responses.py, session_routes.py, about.py, page/
    api/socket.py         steps on a socket
    api/predicting.py     `elman predict` over HTTP
    api/openapi.py        the interface as a document
    api/app.py            the application: keys, hosts and origins, routes, the form of errors

    server.py             start, listen, drain, stop

A module imports only from what is listed above it: json, errors, limits, store, engine, net, api, server.

A request is parsed and checked on the event loop, which hands a job to the engine and waits. The engine works in ticks.
In each it takes all jobs that have arrived, looks up their sessions, lets the models compute a piece of each, side by
side, writes what is finished to the store, commits once, and only then sends the replies. A session's state is bytes
that go into a model for a tick and come out again: there is no row that belongs to it, and nothing to evict.

What is promised is in docs/guides/serving.md.
"""
