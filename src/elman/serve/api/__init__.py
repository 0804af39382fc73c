"""Routes: bodies are parsed and checked, jobs are submitted, answers are put together; OpenAPI and the page."""
