"""How each trainer takes a runtime's ARN, ready to paste."""

from __future__ import annotations

from dataclasses import dataclass

MODEL = "Qwen/Qwen3-4B-Instruct-2507"
GATEWAY = "https://gateway.example.com"


@dataclass(frozen=True)
class Deployed:
    """What a trainer has to know."""

    name: str
    arn: str
    store: str
    image: str
    queue_url: str | None = None


def snippets(deployed: Deployed) -> dict[str, str]:
    """By trainer. The model, the data and the gateway's address are placeholders of the user's."""
    return {
        "trl": _command(deployed, "trl"),
        "verl": _command(deployed, "verl")
        + "\n# or, as overrides of a verl command of your own:\n"
        + " \\\n".join(
            f"actor_rollout_ref.rollout.{text}"
            for text in (
                "name=agentcore",
                f"agentcore.agent_name={deployed.name}",
                f"agentcore.container_uri={deployed.image}",
                f"agentcore.s3_bucket={deployed.store}",
            )
        ),
        "slime": _slime(deployed),
        "rllm": " \\\n".join(
            f"rllm.remote_runtime.{text}"
            for text in (
                "enabled=true",
                "backend=agentcore",
                f"agentcore.agent_runtime_arn={deployed.arn}",
                f"agentcore.s3_bucket={deployed.store}",
                "agentcore.tps_limit=25",
                "session_timeout=300",
            )
        ),
        "tinker": _command(deployed, "tinker"),
    }


def text(deployed: Deployed) -> str:
    """All of them, for people."""
    return "\n\n".join(f"# {name}\n{snippet}" for name, snippet in snippets(deployed).items())


def _command(deployed: Deployed, backend: str) -> str:
    lines = [
        f"agentcore-rl train {deployed.arn}",
        f"--backend {backend} --model {MODEL} --data rows.jsonl",
        f"--store {deployed.store}" + (f" --sqs-url {deployed.queue_url}" if deployed.queue_url else ""),
    ]
    if backend in ("trl", "tinker"):
        lines.append(f"--gateway-host 0.0.0.0 --gateway-port 9000 --gateway-url {GATEWAY}")
    return " \\\n  ".join(lines)


def _slime(deployed: Deployed) -> str:
    return (
        "from agentcore_rl_toolkit.backends.slime import SlimeRunner\n\n"
        "SlimeRunner(\n"
        f'    agent_runtime_arn="{deployed.arn}",\n'
        f'    s3_bucket="{deployed.store}",\n'
        f'    model_dir="/models/{MODEL.rpartition("/")[2]}",\n'
        '    data_path="rows.jsonl",\n'
        ").train()"
    )
