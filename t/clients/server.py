"""One nginx with the module, its engine and the demo model, in a temporary prefix of its own.

The processes form a session, so that whatever the master forked can be found, and must be gone
after the end.  No error.log may hold what FORBIDDEN names, whatever was tested.
"""

import contextlib
import http.client
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
NGINX = os.environ.get("TEST_NGINX", "/usr/sbin/nginx")
MODEL = ROOT / "conf/models/nginx-directives-moe"
SLOW = float(os.environ.get("TEST_SLOW", "1"))
QUESTION = "What is the default of keepalive_timeout?"
ANSWER = "keepalive_timeout 75s;"
LONG = {"prompt": "Syntax:", "max_tokens": 1900, "temperature": 0, "ignore_eos": True}
FORBIDDEN = re.compile(r"\[(alert|emerg|crit)\]|open socket #\d+ left|exited on signal"
                       r"|Sanitizer|runtime error:")

CONFIG = """
user %(user)s;
load_module %(build)s/ngx_http_moe_module.so;
daemon off;
worker_processes 2;
pid %(prefix)s/nginx.pid;
error_log %(prefix)s/error.log info;

events {
    worker_connections 1024;
}

http {
    client_body_temp_path %(prefix)s/client_body;
    proxy_temp_path %(prefix)s/proxy;
    fastcgi_temp_path %(prefix)s/fastcgi;
    uwsgi_temp_path %(prefix)s/uwsgi;
    scgi_temp_path %(prefix)s/scgi;

    log_format attempts '$status $http_x_stainless_retry_count $moe_finish_reason $request';
    access_log %(prefix)s/access.log attempts;

    ssl_certificate %(prefix)s/cert.pem;
    ssl_certificate_key %(prefix)s/key.pem;

    moe_engine_path %(build)s/moe-engine;
    moe_model demo %(model)s {
        threads 1;
        context 2048;
        alias gpt-4o-mini;
        %(model_block)s
    }

    server {
        listen 127.0.0.1:%(port)d;
        listen 127.0.0.1:%(h2_port)d http2;
        listen 127.0.0.1:%(tls_port)d ssl http2;

        location / {
            moe_pass demo;
        }

        location = /metrics {
            moe_metrics;
        }
    }
}
"""


def wait_until(condition, timeout=10):
    """The first true value of condition(), or an AssertionError after the timeout."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {timeout} s in vain"
        time.sleep(0.02)


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def worker_user(prefix):
    """nobody, where nobody can reach the project's files."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    for path in (BUILD.resolve(), MODEL, prefix):
        if any(not parent.stat().st_mode & 0o001 for parent in (path, *path.parents)):
            return "root"
    return "nobody nogroup"


class Server:
    """slow: an engine of portable C, some tens of tokens per second, for what is to last."""

    def __init__(self, model_block="", slow=False, model=MODEL):
        self.prefix = pathlib.Path(tempfile.mkdtemp(prefix="moe-clients-"))
        self.prefix.chmod(0o755)
        self.port, self.h2_port, self.tls_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-batch", "-keyout", self.prefix / "key.pem",
                        "-out", self.prefix / "cert.pem"], check=True, capture_output=True)
        (self.prefix / "nginx.conf").write_text(CONFIG % {
            "user": worker_user(self.prefix), "build": BUILD, "model": model,
            "prefix": self.prefix, "model_block": model_block, "port": self.port,
            "h2_port": self.h2_port, "tls_port": self.tls_port})
        environment = dict(os.environ, **({"MOE_ISA": "c"} if slow else {}))
        if "TEST_PRELOAD" in os.environ:    # a sanitizer's library, which nginx does not bring
            environment |= {"LD_PRELOAD": os.environ["TEST_PRELOAD"],
                            "ASAN_OPTIONS": "detect_leaks=0"}
        self.master = subprocess.Popen(
            [NGINX, "-p", self.prefix, "-c", self.prefix / "nginx.conf",
             "-e", self.prefix / "error.log"],
            env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        wait_until(self.ready, 30)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def post(self, path, **body):
        """Status, headers and JSON of an answer, by no client's library."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    @contextlib.contextmanager
    def occupied(self):
        """While a long stream runs."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=True)))
            wait_until(lambda: self.running() == 1)
            yield connection

    def ready(self):
        assert self.master.poll() is None, "nginx did not start:\n" + self.log("error.log")
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def gauge(self, name):
        text = self.get("/metrics")[1]
        return float(re.search(rf"^moe_{name}(?:{{[^}}]*}})? (\S+)$", text, re.M).group(1))

    def running(self):
        return self.gauge("num_requests_running")

    def waiting(self):
        return self.gauge("num_requests_waiting")

    def idle(self):
        wait_until(lambda: self.running() == 0 and self.waiting() == 0)

    def log(self, name):
        with contextlib.suppress(FileNotFoundError):
            return (self.prefix / name).read_text(errors="replace")
        return ""

    def attempts(self, since=0):
        """The lines of the access log: status, retry count, finish reason, request."""
        return [line for line in self.log("access.log").splitlines()[since:]
                if "/v1/" in line]

    def left(self):
        """What is left of the session's processes."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.master.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def stop(self):
        """Quits; fails on what was left behind and on what the log must not say."""
        self.master.send_signal(signal.SIGQUIT)
        try:
            self.master.wait(10 * SLOW)
            wait_until(lambda: not self.left(), 5)
            faults = [line for line in self.log("error.log").splitlines()
                      if FORBIDDEN.search(line)]
            assert not faults, "\n".join(faults)
        finally:
            for pid in self.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.master.wait()
            shutil.rmtree(self.prefix, ignore_errors=True)
