"""What is on disk: models and tensors, configs, the modules that add to them."""
