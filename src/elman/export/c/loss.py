"""What weights in fewer bits cost a language model, on the data that its run was tested with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.errors import ElmanError
from elman.files import config
from elman.tasks import open_model
from elman.tasks.text.data import TextDataConfig, open_splits
from elman.tasks.text.lm import LanguageModel


def nats_lost(run: str | Path, weights: str) -> str:
    """A line that says it; nothing of what is no run of a language model, or whose data are gone."""
    settings = Path(run) / config.NAME
    if not settings.exists():
        return ""
    lm = open_model(run)[1]
    data: Any = config.read(settings).get("data")
    if not isinstance(lm, LanguageModel) or not isinstance(data, dict):
        return ""
    try:
        splits = open_splits(TextDataConfig(**data), lm.vocabulary)
    except ElmanError as error:
        return f"what {weights} weights cost was not measured: {error}"
    name, part = ("test", splits.test) if splits.test.tokens else ("valid", splits.valid)
    whole, narrow = (lm.evaluate(part, weights=stored).nats_per_token for stored in (None, weights))
    return f"{name}: {whole:.4f} nats per token, {narrow:.4f} with {weights} weights ({narrow - whole:+.4f})"
