"""The job store contract as tests: a driver's own tests subclass `JobStoreContract`, as with `StoreContract`."""

from celery_sticky.testing.job_store_contract.admissions import AdmissionContract
from celery_sticky.testing.job_store_contract.notes import NoteContract
from celery_sticky.testing.job_store_contract.outcomes import OutcomeContract
from celery_sticky.testing.job_store_contract.owners import OwnerContract
from celery_sticky.testing.job_store_contract.places import PlaceContract
from celery_sticky.testing.job_store_contract.runs import RunContract
from celery_sticky.testing.job_store_contract.signals import JobFaultContract, JobSignalContract
from celery_sticky.testing.job_store_contract.stops import StopContract

__all__ = ["JobStoreContract"]


class JobStoreContract(
    AdmissionContract,
    OutcomeContract,
    StopContract,
    OwnerContract,
    RunContract,
    NoteContract,
    PlaceContract,
    JobSignalContract,
    JobFaultContract,
):
    """The whole contract."""
