"""From a model to text: sampling, and one beam search for every model over symbols."""

from elman.decoding.beam import beam
from elman.decoding.hypotheses import Hypothesis
from elman.decoding.sample import Carried, Sampler, Sampling, sample

__all__ = ["Carried", "Hypothesis", "Sampler", "Sampling", "beam", "sample"]
