"""Looking at runs: the page in the browser, the views of the terminal, and the figures that both show.

In: the folder of a run, which it only reads. Out: a page on this machine, text in a terminal, one file to send. It
refuses to write to a run, to trust what a rollout says, and to fetch anything. `guards/` judges a run as it trains.

Imports `client`, `gateway`, `rollout`.
"""
