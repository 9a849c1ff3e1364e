"""How ``torch`` functions work on tensordicts: one dispatch table, and the functions with an algorithm of their own."""
