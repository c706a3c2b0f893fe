"""What a command says of itself as it ends."""

import subprocess
import sys


def test_reads_that_fail_behind_the_first_are_kept_quiet():
    program = """
import asyncio, gc
from plm_jax.common import command_line
async def fail():
    1 / 0
async def main():
    tasks = [asyncio.ensure_future(fail()) for _ in range(2)]
    await asyncio.sleep(0)
def verb():
    asyncio.run(main())
    gc.collect()
command_line.run(verb)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_tensorstore_cannot_tell_its_loop_is_kept_quiet():
    program = """
import tensorstore
from plm_jax.common import command_line
class Odd:
    def __del__(self):
        raise ValueError("of an object")
def main():
    promise, future = tensorstore.Promise.new()
    future.add_done_callback(lambda future: 1 / 0)
    promise.set_result(None)
    Odd()
command_line.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "ZeroDivisionError" not in done.stderr
    assert done.stderr.count("Traceback") == 1 and "of an object" in done.stderr
