"""Which rank takes which sample: samplers that follow schedules."""
