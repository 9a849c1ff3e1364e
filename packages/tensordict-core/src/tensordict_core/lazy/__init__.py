"""Lazy stacks: tensordicts kept apart and combined when they are read."""
