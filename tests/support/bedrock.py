"""boto3's client for Bedrock, led to a session of the gateway."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

CLAUDE = "us.anthropic.claude-sonnet-4-20250514-v1:0"
"""What production calls; a session opened with `model` samples from that instead."""
ARN = "arn:aws:bedrock:us-west-2:123456789012:application-inference-profile/a1b2c3d4e5f6"

STAND_INS = {
    "AWS_ACCESS_KEY_ID": "stand-in",
    "AWS_SECRET_ACCESS_KEY": "stand-in",
    "AWS_DEFAULT_REGION": "us-west-2",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""boto3 signs with something, and nobody looks at it."""


def bedrock(session: dict[str, Any], **settings: Any) -> Any:
    """The real client; it doesn't try again unless asked to. Close it."""
    known: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "read_timeout": 60}
    return boto3.client(
        "bedrock-runtime",
        endpoint_url=session["bedrock_endpoint_url"],
        region_name="us-west-2",
        aws_access_key_id="stand-in",
        aws_secret_access_key="stand-in",
        config=Config(**known | settings),
    )
