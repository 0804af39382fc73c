"""Language models and Markov models: texts, networks, generation, serving, the tasks."""
