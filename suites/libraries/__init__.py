"""Products, convolutions, transforms, decompositions, sorting and random numbers, against oracles that torch has no part
in."""
