"""Correct computation by every operator of torch. There is one case per operator, group of types and aspect."""
