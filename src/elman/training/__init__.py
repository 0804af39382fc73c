"""One loop for every task: unit, optim, checkpoint, distributed, loop."""
