"""Mixed precision: autocast."""
