"""Does every operator of torch compute correctly? One case per operator, group of types and aspect."""
