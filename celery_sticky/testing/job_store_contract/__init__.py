"""The job store contract as tests: a driver's own tests subclass `JobStoreContract`, as with `StoreContract`."""

from celery_sticky.testing.job_store_contract.admissions import AdmissionContract
from celery_sticky.testing.job_store_contract.checkpoints import CheckpointContract
from celery_sticky.testing.job_store_contract.controls import ControlContract
from celery_sticky.testing.job_store_contract.counts import CountContract
from celery_sticky.testing.job_store_contract.dead_notes import DeadNoteContract
from celery_sticky.testing.job_store_contract.ends import EndContract
from celery_sticky.testing.job_store_contract.failures import FailureContract
from celery_sticky.testing.job_store_contract.many import ManyContract
from celery_sticky.testing.job_store_contract.notes import NoteContract
from celery_sticky.testing.job_store_contract.outcomes import OutcomeContract
from celery_sticky.testing.job_store_contract.owners import OwnerContract
from celery_sticky.testing.job_store_contract.places import PlaceContract
from celery_sticky.testing.job_store_contract.runs import RunContract
from celery_sticky.testing.job_store_contract.signals import JobFaultContract, JobSignalContract
from celery_sticky.testing.job_store_contract.stops import StopContract
from celery_sticky.testing.job_store_contract.ticks import TickContract

__all__ = ["JobStoreContract"]


class JobStoreContract(
    AdmissionContract,
    OutcomeContract,
    StopContract,
    EndContract,
    CheckpointContract,
    ControlContract,
    ManyContract,
    OwnerContract,
    RunContract,
    FailureContract,
    CountContract,
    NoteContract,
    DeadNoteContract,
    PlaceContract,
    TickContract,
    JobSignalContract,
    JobFaultContract,
):
    """The whole contract."""
