"""What is around a core: embeddings, read-outs and the distributions that they predict."""
