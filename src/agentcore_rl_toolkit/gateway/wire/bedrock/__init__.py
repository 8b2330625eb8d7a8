"""Bedrock's Converse and InvokeModel. Pure translations."""
