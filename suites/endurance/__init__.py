"""Memory, arithmetic and transfers during the time of `--endurance`: patterns, known answers, power steps."""
