"""Data parallelism: several workers, each with a whole model and a cache, behind one endpoint."""
