"""Speed of launches, graphs, copies, products, a convolution and attention, against the floors of the hardware file."""
