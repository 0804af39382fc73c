"""Models as others saved them: read, and made language models of ours (convert.py). One file a family of networks."""
