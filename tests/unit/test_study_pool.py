import multiprocessing

import pytest

import weft
from weft.errors import InputError
from weft.parallel.tensor import split
from weft.studies.pool import Job, run_jobs
from weft.workload import SubLayer


@pytest.fixture
def jobs():
    gpu = weft.load_gpu("t3-paper")
    layers = [split(SubLayer.custom(512, 512, k), 2) for k in (128, 512, 256)]
    return [Job(layer, gpu, ("sequential",), 512) for layer in layers]


def test_the_largest_job_comes_first(jobs):
    assert [job.layer.gemm.k for job, _ in run_jobs(jobs, 1)] == [256, 128, 64]


def test_no_process_is_left_when_a_study_is_interrupted(jobs):
    def interrupted():
        for _ in run_jobs(jobs, 2):
            assert multiprocessing.active_children()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert multiprocessing.active_children() == []


def test_no_process_is_left_when_a_study_is_done(jobs):
    assert len(list(run_jobs(jobs, 2))) == len(jobs)
    assert multiprocessing.active_children() == []


def test_a_study_needs_a_process(jobs):
    with pytest.raises(InputError, match="0 processes cannot run a study"):
        run_jobs(jobs, 0)
