"""From a model to text: sampling, and one beam search for every model over symbols."""

from elman.decoding.beam import Hypothesis, beam
from elman.decoding.sample import Carried, Sampler, Sampling

__all__ = ["Carried", "Hypothesis", "Sampler", "Sampling", "beam"]
