# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints there are, by log and folder, and which line of history they are of."""

from __future__ import annotations

from mwatch.model.observation import ProcessExit, StoredCheckpoint, StoredCheckpoints
from mwatch.state.checkpoints import fold_stored
from support.builders.fold import READY, WORLD, Story, loaded, loading, saved, saving

CANNOT = (
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
)
TRACE = ("Traceback (most recent call last):", '  File "a.py", line 1, in load', "    read()")


def saves(story: Story, *iterations: int) -> Story:
    for iteration in iterations:
        story.trains(iteration).says(saving(iteration)).wait(1).says(saved(iteration))
    return story


def resumes(story: Story, iteration: int) -> Story:
    return story.wait(60).says(WORLD, loading(iteration), loaded(iteration), READY)


def folder(*states: tuple[int, str, float]) -> StoredCheckpoints:
    return StoredCheckpoints(
        "/ckpt", tuple(StoredCheckpoint(n, s, None, 1, at) for n, s, at in states)
    )


def test_a_save_whose_end_never_comes_is_no_checkpoint() -> None:
    story = saves(Story(), 10).trains(20).says(saving(20))
    assert [n for n, known in story.job.checkpoints.items() if known.is_saved] == [10]


def test_after_a_rollback_the_newer_ones_are_abandoned_for_ever() -> None:
    """Roll back from 600 to 400, then crash at 450: the old 600 never comes back."""
    story = saves(Story().says(WORLD), 400, 500, 600)
    resumes(story, 400).trains(401, 450)
    assert [n for n, known in story.job.checkpoints.items() if known.is_abandoned] == [500, 600]
    assert [rollback.to_iteration for rollback in story.job.timeline.rollbacks] == [400]
    resumes(story, 400)
    assert story.job.checkpoints[600].is_abandoned


def test_one_written_anew_after_a_rollback_counts() -> None:
    story = saves(resumes(saves(Story().says(WORLD), 400, 500, 600), 400), 500)
    assert not story.job.checkpoints[500].is_abandoned
    assert story.job.checkpoints[600].is_abandoned


def test_a_resume_from_the_newest_is_no_rollback() -> None:
    story = resumes(saves(Story().says(WORLD), 400, 500), 500)
    assert list(story.job.timeline.rollbacks) == []
    assert not any(known.is_abandoned for known in story.job.checkpoints.values())


def test_the_folder_shows_abandoned_ones_by_when_they_were_written() -> None:
    story = resumes(saves(Story().says(WORLD), 400, 500, 600), 400)
    when = story.job.timeline.rollbacks[0].at
    story.sees(folder((400, "complete", when - 90), (500, "complete", when + 90),
                      (600, "complete", when - 60)))  # fmt: skip
    assert [n for n, known in story.job.checkpoints.items() if known.is_abandoned] == [600]


def test_a_checkpoint_that_is_not_in_the_folder_is_missing() -> None:
    story = saves(Story(), 10, 20).sees(folder((20, "incomplete", 0.0)))
    assert story.job.checkpoints[10].stored == "missing"
    assert story.job.checkpoints[20].stored == "incomplete"


def test_an_error_while_loading_marks_the_checkpoint() -> None:
    story = saves(Story().says(WORLD), 10, 20).wait(9).says(WORLD, loading(20), *TRACE, CANNOT)
    story.sees(ProcessExit(1, None, None))
    assert story.job.attempt.load == "failed"
    assert story.job.checkpoints[20].load_failed
    assert not story.job.checkpoints[10].load_failed


def test_an_error_that_was_caught_does_not() -> None:
    story = saves(Story().says(WORLD), 20).wait(9)
    story.says(WORLD, loading(20), *TRACE, CANNOT, loaded(20))
    assert story.job.attempt.load == "loaded"
    assert not story.job.checkpoints[20].load_failed


def test_a_kill_while_loading_does_not_blame_the_checkpoint() -> None:
    story = saves(Story().says(WORLD), 20).wait(9).says(WORLD, loading(20))
    story.sees(ProcessExit(137, "SIGKILL", None))
    assert not story.job.checkpoints[20].load_failed


def test_running_out_of_memory_while_loading_does_not_blame_the_checkpoint() -> None:
    story = saves(Story().says(WORLD), 20).wait(9)
    story.says(WORLD, loading(20), *TRACE, "torch.OutOfMemoryError: CUDA out of memory. Tried to")
    story.sees(ProcessExit(1, None, None))
    assert not story.job.checkpoints[20].load_failed


def test_nothing_to_load_is_a_start_from_random() -> None:
    story = Story().says(
        WORLD,
        "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
        "    will not load any checkpoints and will start from random",
    )
    assert story.job.attempt.load == "random"


LOAD = (
    "Traceback (most recent call last):",
    '  File "checkpointing.py", line 1, in load_checkpoint',
    '  File "serialization.py", line 2, in read',
)


def test_a_load_that_nobody_announced_is_identified_by_its_traceback() -> None:
    story = saves(Story().says(WORLD), 10, 20).wait(9).says(WORLD, *LOAD, "EOFError", "exit code 1")
    assert story.job.attempt.load == "failed"
    assert story.job.checkpoints[20].load_failed
    assert not story.job.checkpoints[10].load_failed


def test_a_folder_in_the_message_names_the_checkpoint() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/iter_0000040'"
    story = saves(Story().says(WORLD), 10, 20).wait(9).says(WORLD, *LOAD, missing, "exit code 1")
    assert story.job.attempt.load_iteration == 40
    assert not story.job.checkpoints[20].load_failed


def test_a_checkpoint_that_the_folder_shows_before_the_log_is_of_this_attempt() -> None:
    story = resumes(saves(Story().says(WORLD), 400, 500), 400)
    story.wait(60).sees(folder((500, "complete", story.at)))
    assert story.job.checkpoints[500].attempt == 2
    assert not story.job.checkpoints[500].is_abandoned


def test_a_look_that_began_before_the_save_was_over_does_not_know_of_it() -> None:
    job = saves(Story(), 10, 20).job
    saved_at = job.checkpoints[20].saved_at
    assert saved_at is not None
    fold_stored(job, saved_at - 1.0, folder((10, "complete", 0.0)))
    assert (job.checkpoints[10].stored, job.checkpoints[20].stored) == ("complete", None)
    fold_stored(job, saved_at + 1.0, folder((10, "complete", 0.0)))
    assert job.checkpoints[20].stored == "missing"


def test_a_look_that_began_before_the_save_was_over_saw_a_part_of_it() -> None:
    job = saves(Story(), 10, 20).job
    saved_at = job.checkpoints[20].saved_at
    assert saved_at is not None
    half = folder((10, "complete", 0.0), (20, "incomplete", 0.0))
    fold_stored(job, saved_at - 1.0, half)
    assert job.checkpoints[20].stored is None
    fold_stored(job, saved_at + 1.0, half)
    assert job.checkpoints[20].stored == "incomplete", "what the log says is no proof"
