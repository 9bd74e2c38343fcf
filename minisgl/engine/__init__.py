"""The runtime: requests in, tokens out."""
