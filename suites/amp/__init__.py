"""Mixed precision: autocast and the gradient scaler."""
