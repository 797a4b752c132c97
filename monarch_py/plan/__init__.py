"""The access plan: every access of every rank in every epoch, known before the training starts."""

from monarch_py.plan.access import NEVER, all_frequencies, analyse, next_uses
from monarch_py.plan.holders import find_holders
from monarch_py.plan.loader import Loader
from monarch_py.plan.plan import Plan, PlanPart
from monarch_py.plan.timeline import Timeline

__all__ = [
    "NEVER",
    "Loader",
    "Plan",
    "PlanPart",
    "Timeline",
    "all_frequencies",
    "analyse",
    "find_holders",
    "next_uses",
]
