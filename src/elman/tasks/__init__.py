"""What models are for. A task is which embed, which read-out, which targets."""

from elman.tasks.language_model import LanguageModel, ModelConfig, Score

TASKS: dict[str, type] = {"lm": LanguageModel}

__all__ = ["TASKS", "LanguageModel", "ModelConfig", "Score"]
