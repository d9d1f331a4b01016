"""The files that take an executor's output."""

from __future__ import annotations

import os

from harness.supervisor.executor_handle import OutputFile, Outputs


def test_a_short_text_is_read_whole() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"one two three")
    assert file.read(4, 7, 100) == "two"
    assert file.read(4, 4, 100) == ""
    assert file.read(9, 2, 100) == ""
    file.close()


def test_of_a_long_text_head_and_tail_are_kept_and_the_loss_is_said() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"head" + b"x" * 1000 + b"tail")
    text = file.read(0, file.size(), 8)
    assert text == "head\n[… 1000 bytes cut …]\ntail"
    file.close()


def test_bytes_that_are_no_utf8_become_visible() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"a\xff\x00b")
    assert file.read(0, 4, 100) == "a\\xff\x00b"
    file.close()


def test_a_writer_goes_on_at_the_start_of_an_emptied_file() -> None:
    file = OutputFile()
    writer = os.dup(file.descriptor)
    os.write(writer, b"before")
    file.empty()
    os.write(writer, b"after")
    assert file.read(0, file.size(), 100) == "after"
    os.close(writer)
    file.close()


def test_a_file_is_trimmed_once_it_is_too_large() -> None:
    file = OutputFile()
    os.write(file.descriptor, b"x" * 20)
    assert file.trimmed(20) == 20
    os.write(file.descriptor, b"x")
    assert file.trimmed(20) == 0
    assert file.size() == 0
    file.close()


def test_all_files_are_emptied_at_once() -> None:
    outputs = Outputs()
    for descriptor in outputs.descriptors():
        os.write(descriptor, b"x")
    outputs.empty()
    assert [os.fstat(descriptor).st_size for descriptor in outputs.descriptors()] == [0, 0, 0, 0]
    outputs.close()
