"""Loaders for users who can change their training program; docs/loaders.md helps to choose one.

Programs import the names below. Importing this package does not import torch or h5py. A loader
imports them when it first needs them.
"""

from monarch_py.loaders.groups.loader import GroupLoader
from monarch_py.loaders.memory.kept import KeptDataset
from monarch_py.loaders.records.dataset import RecordDataset
from monarch_py.loaders.records.files import tar_members
from monarch_py.loaders.records.packs import PackDataset
from monarch_py.loaders.records.reads import read_all
from monarch_py.loaders.records.whole_files import FileDataset
from monarch_py.loaders.samplers.collate import AllowEmpty
from monarch_py.loaders.samplers.keyed import keyed
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.planned import sampler_of
from monarch_py.loaders.samplers.solar import SolarSampler
from monarch_py.loaders.samplers.steps import equal_steps
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.loaders.staged.nopfs import Job, NoPFSDataLoader, NoPFSImageFolder
from monarch_py.plan.schedule import EpochSchedule, group_schedule

__all__ = [
    "AllowEmpty",
    "EpochSchedule",
    "FileDataset",
    "GroupLoader",
    "Job",
    "KeptDataset",
    "LocalFirstSampler",
    "NoPFSDataLoader",
    "NoPFSImageFolder",
    "PackDataset",
    "RecordDataset",
    "SolarSampler",
    "StagedLoader",
    "equal_steps",
    "group_schedule",
    "keyed",
    "read_all",
    "sampler_of",
    "tar_members",
]
