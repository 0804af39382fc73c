"""Hidden Markov models: data, estimators, files, the task. `elman.hmm` has their public names."""
