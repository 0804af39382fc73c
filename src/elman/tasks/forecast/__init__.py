"""Forecasting: panels of series, the network, its states, back-tests, serving, the task."""
