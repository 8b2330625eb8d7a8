from agentcore_rl_toolkit import RewardFunction

class MyReward(RewardFunction):
    def __call__(self, **kwargs) -> float:
        reward = float(kwargs["ground_truth"] in kwargs["response_text"])
        return reward

GSM8KReward = MyReward
