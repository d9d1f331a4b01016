"""Pools of memory that graphs own: what is in them, who shares them, how long they last, how they are put back."""
