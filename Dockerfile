# `elman serve` in a container. Build the wheel first (make wheel), then: docker build -t elman .
#   docker run -p 8000:8000 -v elman:/data -v ./runs:/models:ro elman /models/book --api_key_file /data/keys
FROM python:3.13-slim

# Torch's default build on Linux brings several gigabytes for graphics cards. Its installation page names the index of the builds
# for processors: docker build --build-arg PIP_EXTRA_INDEX_URL=... -t elman .
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt dist/*.whl /tmp/elman/
RUN pip install --no-cache-dir -c /tmp/elman/constraints.txt "$(ls /tmp/elman/*.whl)[serve]" \
    && rm -r /tmp/elman \
    && useradd --create-home --uid 1000 elman \
    && install --directory --owner elman /data

USER 1000
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["elman", "serve", "--host", "0.0.0.0", "--port", "8000", "--store", "/data/sessions.db"]
