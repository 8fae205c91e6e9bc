import os
import pathlib

# Clients that look for proxies, settings or news find none.
for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.startswith(("OPENAI_", "LANGCHAIN_", "LITELLM_")):
        del os.environ[name]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"

import pytest

from server import BUILD, SLOW, Server

# What llama-index would fetch or write at home stays in the build tree.
os.environ["LLAMA_INDEX_CACHE_DIR"] = str(pathlib.Path(BUILD) / "clients/llama-index")

@pytest.fixture(scope="session")
def server():
    one = Server()
    yield one
    one.stop()


@pytest.fixture(scope="session")
def slow_server():
    """One sequence at a time, one more may wait, three seconds long."""
    one = Server(f"batch_sequences 1; queue 1; queue_timeout {int(3000 * SLOW)}ms;", slow=True)
    yield one
    one.stop()
