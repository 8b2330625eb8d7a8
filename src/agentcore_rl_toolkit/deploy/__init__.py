"""From an agent's folder to a runtime's ARN: the folder, its image, what it needs on AWS, and taking it all away again.

Every resource is made by one function of `resources.py`, in the order of `deployment.py`, and noted in the agent's
folder (`state.py`) the moment it exists. Nothing here runs rollouts; `doctor/` asks the client to.
"""
