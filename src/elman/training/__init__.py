"""One loop for every task: loss, optim, checkpoint, distributed, loop."""
