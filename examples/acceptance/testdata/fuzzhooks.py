"""Steers Schemathesis: see fuzz_test.go, which runs it.

Random names meet nothing but "not found". So part of the calls that are valid so
far is given names that exist, and what would never end, or change what other
calls need, is kept away from them. Calls that are wrong on purpose stay as they
are.
"""

import collections
import io
import itertools
import json
import os
import re
import tarfile
import zlib

import jsonschema_rs
import schemathesis
from schemathesis import GenerationMode

# Names that exist, from the test: sandbox, spare (to be paused and put back),
# stopped, process, tag, image.
HAVE = json.loads(os.environ["SIETCH_FUZZ_HAVE"])

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
PATHS = ["/etc", "/etc/hostname", "/root", "/root/fuzz", "/proc/self/mem", "/dev/null", "/none/such"]
# What may go: commands begin in /root.
REMOVED = ["/root/fuzz", "/none/such"]

# What would keep the others from a sandbox is done to the spare one, or to one
# where it is done already.
SPARE = {"pauseSandbox", "resumeSandbox", "startSandbox", "checkout"}
STOPPED = {"stopSandbox", "arrakisUpdateVM"}
# What takes seconds is done so often.
COSTLY = {
    "commit": 3, "arrakisSnapshotVM": 1, "checkout": 1, "reclaimSandbox": 1, "startSandbox": 1, "runSandbox": 1,
    "arrakisRunCommand": 8, "exec": 8, "writeFile": 12, "readFile": 12, "readTar": 6,
}  # fmt: skip
# What would take a sandbox away from the others, or never end.
NOBODY = {"removeSandbox", "arrakisDestroyVM", "watchPath"}


def real(case, part):
    """Whether this call gets names that exist: most do, always the same ones, and
    all of an operation until it was served once."""
    if not DONE[case.operation.definition.raw.get("operationId", "")]:
        return True
    text = f"{part} {case.operation.label} {case.path_parameters} {case.query} {case.body!r}"
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % 4 > 0


@schemathesis.hook
def before_call(ctx, case, kwargs):
    op = case.operation.definition.raw.get("operationId", "")
    path, query, body = case.path_parameters, case.query, case.body
    if path:
        name = path.get("name")
        if isinstance(name, str) and NAME.match(name):
            if op in NOBODY or DONE[op] >= COSTLY.get(op, 1 << 30):
                path["name"] = "nobody"
            elif op in SPARE:
                path["name"] = HAVE["spare"]
            elif op in STOPPED:
                path["name"] = HAVE["stopped"]
            elif real(case, "name"):
                path["name"] = HAVE["sandbox"]
        if isinstance(path.get("id"), str) and path["id"] and real(case, "id"):
            path["id"] = HAVE["process"]
        if isinstance(path.get("ref"), str) and path["ref"] and real(case, "ref"):
            path["ref"] = HAVE["tag"]
        if isinstance(path.get("image"), str) and path["image"] and real(case, "image") and op != "removeImage":
            path["image"] = HAVE["image"]
        if op == "proxy" and str(path.get("port", "")).isdigit():
            path["port"] = 9
    if query is not None:
        given = query.get("path")
        if op != "watchPath" and isinstance(given, str) and given.startswith("/") and real(case, "path"):
            paths = REMOVED if op == "removePath" else PATHS
            query["path"] = paths[next(TURN) % len(paths)]
        if op in ("events", "sandboxLogs", "processOutput") and query.get("follow") in (None, True, "true"):
            query["follow"] = "false"
        if op == "waitProcess" and str(query.get("timeout_ms", 0)).isdigit():
            query["timeout_ms"] = 50
    if isinstance(body, dict):
        if op in ("exec", "startProcess") and isinstance(body.get("timeout_ms"), (int, type(None))):
            body.setdefault("timeout_ms", 2000)
        if op == "arrakisRunCommand":
            # A line of the shell that is drawn at random is better not run.
            if isinstance(body.get("cmd"), str):
                body["cmd"] = "echo " + repr(body["cmd"][:50])
        if op in ("createTag", "createBranch") and body.get("ref") and real(case, "ref"):
            body["ref"] = HAVE["tag"]
        if op in ("createTag", "createBranch") and NAME.match(str(body.get("name", ""))) and real(case, "tag"):
            body["name"] = f"fuzz-{next(COUNT)}"
        if op == "resizeSandbox" and isinstance(body.get("cpus"), (int, float)) and body["cpus"] >= 1 and real(case, "cpus"):
            body.pop("memory_bytes", None)
            body["cpus"] = 1
        elif op == "resizeSandbox" and isinstance(body.get("cpus"), (int, float)) and 0.05 <= body["cpus"] < 1:
            # The least that is allowed would make every later call wait.
            body["cpus"] = 0.9
        if op == "signalProcess" and isinstance(body.get("signal"), str) and real(case, "signal"):
            body["signal"] = "TERM"
        if op == "arrakisUpdateVM" and body.get("status") in ("resume", "resumed", "running", "paused"):
            body["status"] = "stopped"
        if op == "checkout" and body.get("ref"):
            body["ref"] = HAVE["tag"] if real(case, "ref") else "nobody"
        if op in ("fork", "runSandbox") and isinstance(body.get("from"), str) and body["from"]:
            # What calls have tagged and imported would be booted by the dozen.
            body["from"] = "nobody"
            if op == "runSandbox" and DONE[op] < COSTLY[op] and case.meta.generation.mode == GenerationMode.POSITIVE:
                body.clear()
                body.update({"from": HAVE["image"], "memory_bytes": 128 << 20, "disk_bytes": 64 << 20})
        if op == "arrakisStartVM" and isinstance(body.get("vmName"), str):
            body["rootfs"], body["snapshotId"] = "nobody", "nobody"
    headers = case.headers
    if headers and headers.get("Idempotency-Key") and real(case, "key"):
        # The few keys that come to a generator's mind are soon used up.
        headers["Idempotency-Key"] = f"fuzz-{next(COUNT)}"


COUNT, TURN, DONE = itertools.count(), itertools.count(), collections.Counter()


@schemathesis.hook
def after_call(ctx, case, response):
    if response.status_code < 300:
        DONE[case.operation.definition.raw.get("operationId", "")] += 1


@schemathesis.serializer("application/x-tar")
def tar(ctx, value):
    """Half are noise, half are archives with noise in them."""
    noise = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    if zlib.crc32(noise) % 2:
        return noise
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", errors="surrogateescape") as archive:
        member = tarfile.TarInfo(noise[:80].decode("latin-1").replace("\0", "") or "Dockerfile")
        member.size, member.mode = len(noise), len(noise) % 0o10000
        member.type = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE][len(noise) % 5]
        if not member.isreg():
            member.size, member.linkname = 0, "../" * 3 + "etc/passwd"
        archive.addfile(member, io.BytesIO(noise))
        line = b"FROM scratch\nLABEL a=" + noise.replace(b"\n", b" ")[:40] + b"\n"
        recipe = tarfile.TarInfo("Dockerfile")
        recipe.size = len(line)
        archive.addfile(recipe, io.BytesIO(line))
    return out.getvalue()


@schemathesis.deserializer("text/event-stream")
def text(ctx, response):
    """What the document calls a string is one, whatever is in it."""
    return response.content.decode()


@schemathesis.deserializer("application/x-ndjson")
def lines(ctx, response):
    """Each line is held against the schema by streamed_lines; here the last."""
    return [json.loads(l) for l in response.content.decode().splitlines()][-1]


def follows(schema, name, value):
    """The value is what the document calls so."""
    jsonschema_rs.validate({"$ref": "#/components/schemas/" + name, "components": schema["components"]}, value)


@schemathesis.check
def streamed_lines(ctx, response, case):
    """What comes in a stream is as described, line by line."""
    schema = case.operation.schema.raw_schema
    kind = response.headers.get("content-type", "")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "application/x-ndjson":
        name = "ForkLine" if case.operation.path == "/v1/forks" else "ImageLine"
        for line in response.content.decode().splitlines():
            follows(schema, name, json.loads(line))
    if kind == "text/event-stream":
        for line in response.content.decode().splitlines():
            if line.startswith("data: "):
                follows(schema, "Event", json.loads(line[6:]))


CODES = {}


def codes(schema):
    """What the document says of statuses: by status, the codes it comes with."""
    if not CODES:
        text = schema["components"]["schemas"]["ErrorCode"]["description"]
        for part in text.replace("\n", " ").split("·"):
            status, names = part.strip().split(" ", 1)
            CODES[int(status)] = {n.strip() for n in names.split(",")}
    return CODES


@schemathesis.check
def documented_errors(ctx, response, case):
    """A failure has a status and a code that the document pairs, and a word."""
    if response.status_code < 400:
        return
    op = case.operation.definition.raw.get("operationId", "")
    if op == "proxy" and "X-Request-Id" not in {k.title() for k in response.headers}:
        return
    if op == "readyz" and response.status_code == 503:
        return
    if case.method == "HEAD":
        return
    error = response.json()["error"]
    known = codes(case.operation.schema.raw_schema)
    assert error["code"] in known.get(response.status_code, ()), f"{response.status_code} with code {error['code']}"
    assert error["message"], "an error without a message"
    for word in ("panic", "goroutine", "runtime error", "%!", ".go:"):
        assert word not in error["message"], f"the message shows the program: {error['message']}"


@schemathesis.check
def request_id(ctx, response, case):
    """Every answer can be found in the log."""
    assert response.headers.get("x-request-id"), "no X-Request-Id"
