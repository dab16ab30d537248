"""Traffic, memory and balance of P3 against the other schedules."""
