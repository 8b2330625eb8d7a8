"""The router's flags."""

FLAGS = ["--sglang-router-ip", "--prefill-num-servers"]
