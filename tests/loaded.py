"""Commands and scripts in real processes that begin in a tenth of a second, with everything imported already.

``loaded.Popen`` and ``loaded.run`` replace those of ``subprocess`` for ``hardneg …``, ``python -m hardneg …`` and
``python -c …``. Each process that runs tests has a server, which has imported the modules of the commands; that
takes seconds of a core. For each command the server forks a process with its own number, streams, working folder,
environment and signals. This does not test importing, nor variables that modules read while they are imported: all
variables but those in ``LATE`` must be the server's. Python also does not take down its modules at the end.

The server has one thread and calculates nothing, so nothing is lost in a fork.
"""

import atexit
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import collector

# Variables that are read only when they are needed. A module may read any other variable at import. No module
# reads those of KMP; scikit-learn sets them when it is imported, which a test may do while the server runs.
LATE = {
    "HARDNEG_CACHE",
    "HARDNEG_PRECISION",
    "HARDNEG_REPORT",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTEST_CURRENT_TEST",
    "PYTHONPATH",
    "RAYON_NUM_THREADS",
}
PROGRAM = str(Path(sys.executable).with_name("hardneg"))
MOST = 1 << 20  # bytes of a request
MODULES = [
    "hardneg.api.recipes",
    "hardneg.cli",
    "Stemmer",
    "bm25s",
    "faiss",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "transformers.models.bert.modeling_bert",
]


# ---------------------------------------------------------------- who starts


class Server:
    """The server of this process, which starts at its first use and ends with this process."""

    def __init__(self):
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=self.environment)
        theirs.close()
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def start(self, words, environment, cwd, streams):
        """Start a process; returns its number, and a socket that tells its status."""
        odd = {name for name, _ in self.environment.items() ^ environment.items()} - LATE
        assert not odd, f"{sorted(odd)} may be read by a module while it is imported"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps([words, environment, str(cwd or Path.cwd())]).encode()
            socket.send_fds(self.socket, [request], [*streams, theirs.fileno()])
        return int(ours.recv(100)), ours


_servers = {}  # by the owner's process id, because forks of this process start their own servers
_starting = threading.Lock()


def server():
    """The server of this process."""
    with _starting:
        if os.getpid() not in _servers:
            _servers[os.getpid()] = Server()
        return _servers[os.getpid()]


class Popen(subprocess.Popen):
    """``subprocess.Popen`` of a process forked from the server. The server waits for it and tells its status."""

    def _execute_child(
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        *rest,
    ):
        assert (preexec_fn, pass_fds, shell) == (None, (), False), "for processes that are forked as they are"
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        environment = os.environ if env is None else env
        self.pid, self.told = server().start([os.fspath(word) for word in args], {**environment}, cwd, streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags):
        try:
            told = self.told.recv(100, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self.told.close()
        return self.pid, int(told)

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode


def run(command, *, timeout=None, check=False, capture_output=False, **options):
    """``subprocess.run`` of a process that is forked from the server."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def in_studies(patch):
    """Let studies run their experiments as such processes; Python must find the folder of the studies."""
    patch.setattr(importlib.import_module("harness"), "subprocess", types.SimpleNamespace(run=run))


def finish(process, timeout=300):
    """Wait for a process, which is killed if it takes too long; returns status, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


# ---------------------------------------------------------------- the server


def serve(control):
    """Fork a process for each request until the client closes, and tell the number and the status of each."""
    places = [place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the forked processes and for the test runner
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    collector.rest()
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not control:
                waiting.unregister(key.fileobj)
                os.close(key.fileobj)
                pid, tell = key.data
                with tell:
                    tell.send(b"%d" % os.waitpid(pid, 0)[1])
                continue
            request, handles, *_ = socket.recv_fds(control, MOST, 4)
            if not request:
                return None
            if not (pid := fork()):
                others = [control.fileno(), waiting.fileno(), handles[3]]
                for other in waiting.get_map().values():
                    others += [other.fd, other.data[1].fileno()] if other.data else []
                return begin(*json.loads(request), handles[:3], others, places)
            tell = socket.socket(fileno=handles[3])
            tell.send(b"%d" % pid)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tell))
            for handle in handles[:3]:
                os.close(handle)


def wait_alone(seconds=10):
    """Wait until this process has one thread; that which watches the memory ends soon after the last stage."""
    end = time.monotonic() + seconds
    while len(os.listdir("/proc/self/task")) > 1:
        assert time.monotonic() < end, "threads do not survive a fork"
        time.sleep(0.02)


def fork():
    wait_alone()
    return os.fork()


def begin(words, environment, cwd, streams, others, places):
    """Become the new process, with its streams, folder and environment; returns its work as a function."""
    for number, handle in enumerate(streams):
        os.dup2(handle, number)
    for handle in {*streams, *others}:
        os.close(handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    given = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    first = str(Path(PROGRAM).parent) if words[0] == PROGRAM else ""
    sys.path[:] = [first, *given, *places]
    if words[0] == PROGRAM:
        sys.argv = words
        return lambda: runpy.run_module("hardneg", run_name="__main__", alter_sys=False)
    python, kind, what, *rest = words
    assert python == sys.executable, words
    if kind == "-m":
        sys.argv = [what, *rest]
        return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)
    assert kind == "-c", words
    sys.argv = ["-c", *rest]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    return lambda: exec(compile(what, "<string>", "exec"), main.__dict__)


def end(work):
    """Do the work, and end as Python does, but keep the modules: to take them down would first copy them all."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as fault:
        sys.excepthook(type(fault), fault, fault.__traceback__)
    try:
        threading._shutdown()  # waits for other threads to end
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except Exception as fault:
        sys.excepthook(type(fault), fault, fault.__traceback__)
        status = 120
    os._exit(status & 255)


if __name__ == "__main__":
    for module in MODULES:
        __import__(module)
    if work := serve(socket.socket(fileno=int(sys.argv[1]))):
        end(work)
