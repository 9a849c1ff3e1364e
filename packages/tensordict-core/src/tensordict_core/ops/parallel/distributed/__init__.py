"""Several processes that exchange tensordicts: point to point and collectives over ``torch.distributed``."""
