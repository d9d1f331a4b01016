"""Products, convolutions, transforms, decompositions, sorting and random numbers, compared with oracles without
torch.
"""
