"""Models behind an address: taken into a study, and what their samples do not promise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.core.errors import UserError, first_line
from evals.core.files import fingerprint, parse_json, write_json
from evals.core.manifest import Manifest, hash_files
from evals.core.run_spec import Service

NOT_PROMISED = (
    "The server is given a seed for every sample; whether it heeds it, it alone knows.",
    "Which weights, precision, tokenizer and chat template answer under the model's name is not known here.",
    "A server that ignores seeds draws what an interruption cut off anew, which favours short responses.",
    "Settings that were not sent, such as top_k, min_p and penalties, are the server's own.",
)
"""What samples of a server do not promise, and those of a checkpoint do."""


def write_service(service: Service, out: Path) -> None:
    """Ask a server whether it has a model, and write down where it is: ``server.json`` and a manifest."""
    import asyncio

    import httpx

    from evals.generation.server_backend import ask, make_client

    async def asked() -> Any:
        async with make_client(service) as client:
            answer = await ask(client, service, "models")
            answer.raise_for_status()
            return parse_json(answer.content, service.base_url)

    try:
        said: dict[str, Mapping[str, Any]] = {str(model["id"]): dict(model) for model in asyncio.run(asked())["data"]}
        fingerprint(said)  # what no manifest can hold, such as NaN, is no answer
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{service.base_url}: cannot be asked for its models ({type(error).__name__}: {first_line(error)}); "
            "accepted: the address of a server with OpenAI's interface, such as http://127.0.0.1:8000/v1"
        ) from None
    if service.model not in said:
        known = ", ".join(said)[:500] or "no model"
        raise UserError(f"{service.base_url}: has no model {service.model!r}; accepted: {known}")
    path = out / "server.json"
    write_json(path, service.to_json())
    parameters = {"source": "server", "model": service.model}
    details = {"address": service.base_url, "said": said[service.model]}
    Manifest("base_model", {}, hash_files(out, path), parameters, fingerprint(parameters), details).write(
        out / "manifest.json"
    )
