"""The same work without a language for it, for comparison."""
