"""Ticks: jobs are taken in turn, models compute side by side, one commit, then the replies."""
