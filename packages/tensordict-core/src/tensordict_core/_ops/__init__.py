"""Operations as data: records, the factories that hold each algorithm once, and the families that use them."""
