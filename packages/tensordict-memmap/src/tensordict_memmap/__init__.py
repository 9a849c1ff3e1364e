"""Memory-mapped tensors, and tensordicts on disk."""
