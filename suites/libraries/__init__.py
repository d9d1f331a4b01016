"""Products, convolutions, transforms, decompositions, sorting and random numbers, compared without torch."""
