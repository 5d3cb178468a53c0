"""What users of the Arrakis SDK rely on, with the SDK itself.

usage: arrakis.py URL PREFIX
"""

import sys

from py_arrakis import SandboxManager

url, prefix = sys.argv[1:]
manager = SandboxManager(url)
name, other = prefix + "-one", prefix + "-two"


def output(sandbox, cmd):
    answer = sandbox.run_cmd(cmd)
    assert not answer["error"], answer
    return answer["output"].strip()


# start, write, snapshot, change, destroy, restore: the first content is back
one = manager.start_sandbox(name)
assert one.info()["status"] == "RUNNING", one.info()
output(one, "echo first > /tmp/testfile")
assert one.snapshot(prefix + "-state") == prefix + "-state"
output(one, "echo second > /tmp/testfile")
assert output(one, "cat /tmp/testfile") == "second"
one.destroy()
one = manager.restore(name, prefix + "-state")
assert output(one, "cat /tmp/testfile") == "first"

# the same under a second name, while the first runs and has moved on
output(one, "echo third > /tmp/testfile")
two = manager.restore(other, prefix + "-state")
assert output(two, "cat /tmp/testfile") == "first"
assert output(one, "cat /tmp/testfile") == "third"
made_up = two.snapshot()
assert made_up, "a restored machine can be snapshotted, and an id is made"
assert {name, other} <= {s.name for s in manager.list_all()}

# commands: directory, both outputs in their order, failures, background
assert output(one, "pwd") == "/tmp/server_files"
assert output(one, "echo a; echo b >&2; echo c") == "a\nb\nc"
answer = one.run_cmd("echo no; exit 7")
assert answer["output"] == "no\n" and answer["error"] == "exit status 7", answer
one.run_cmd("sleep 0.1; echo later > /tmp/background", blocking=False)
assert output(one, "until cat /tmp/background 2>/dev/null; do sleep 0.1; done") == "later"

# files: beneath the working directory, or absolute, in both directions
one.upload_files([{"path": "a/b.txt", "content": "inside\n"}, {"path": "/opt/c.txt", "content": "absolute\n"}])
assert output(one, "cat a/b.txt /opt/c.txt") == "inside\nabsolute"
read = one.download_files(["a/b.txt", "/opt/c.txt"])
assert [f["content"] for f in read] == ["inside\n", "absolute\n"], read

# states
one.update_state("paused")
assert one.info()["status"] == "PAUSED", one.info()
manager.start_sandbox(name)
assert output(one, "cat /tmp/testfile") == "third"
one.update_state("stopped")
assert one.info()["status"] == "STOPPED", one.info()
manager.start_sandbox(name)
assert one.info()["status"] == "RUNNING", one.info()

manager.destroy_all()
assert manager.list_all() == []
print("fine")
