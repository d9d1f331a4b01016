"""Numbers that must come out right, bit for bit or within a stated bound."""
