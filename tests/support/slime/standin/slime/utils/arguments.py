"""Flags, as slime's parser has them: those that our commands use, and a few more."""

FLAGS = [
    *("--actor-num-nodes", "--actor-num-gpus-per-node", "--num-gpus-per-node", "--colocate", "--rollout-num-gpus"),
    *("--hf-checkpoint", "--ref-load", "--load", "--save", "--save-interval", "--prompt-data", "--input-key"),
    *("--metadata-key", "--rollout-shuffle", "--rollout-seed", "--seed", "--num-rollout", "--rollout-batch-size"),
    *("--n-samples-per-prompt", "--global-batch-size", "--num-steps-per-rollout", "--rollout-temperature"),
    *("--rollout-max-response-len", "--rollout-max-context-len", "--rollout-function-path"),
    *("--custom-generate-function-path", "--custom-reward-post-process-path", "--custom-config-path"),
    *("--eval-prompt-data", "--eval-interval", "--n-samples-per-eval-prompt", "--advantage-estimator", "--eps-clip"),
    *("--eps-clip-high", "--use-tis", "--tis-clip", "--lr", "--use-dynamic-batch-size", "--max-tokens-per-gpu"),
    *("--custom-advantage-function-path", "--normalize-advantages"),
    *("--balance-data", "--offload-train", "--use-rollout-routing-replay", "--rollout-top-p"),
]
