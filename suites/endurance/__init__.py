"""Memory, arithmetic and transfers for as long as `--endurance` asks: patterns, known answers, power steps."""
