"""Products, convolutions, transforms, decompositions, sorting and random numbers, against oracles without torch."""
