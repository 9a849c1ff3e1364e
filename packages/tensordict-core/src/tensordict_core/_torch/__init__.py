"""How ``torch`` functions work on tensordicts: one dispatch table, and the functions that need an algorithm of their own."""
