"""What the adapter is told."""

from dataclasses import dataclass


@dataclass
class AgentCoreRuntimeConfig:
    agent_runtime_arn: str = ""
    s3_bucket: str = ""
    tps_limit: int = 25
