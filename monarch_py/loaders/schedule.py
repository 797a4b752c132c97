"""The schedules of epochs, as training programs import them; they are computed without torch."""

from monarch_py.plan.schedule import EpochSchedule, equal_batches, group_schedule

__all__ = ["EpochSchedule", "equal_batches", "group_schedule"]
