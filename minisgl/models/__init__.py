"""Hugging Face checkpoints as plain modules that read like the papers' figures."""
