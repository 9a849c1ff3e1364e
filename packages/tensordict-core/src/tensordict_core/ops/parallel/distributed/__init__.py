"""``torch.distributed`` with tensordicts: point-to-point messages and collectives."""
