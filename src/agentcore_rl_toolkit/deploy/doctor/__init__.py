"""`doctor`: the whole road, tried before money is spent. Each check is a line that says yes, no with a fix, or why not.

data.py      the rows                      agent.py   the app's contract, with a scripted model, on this machine
model.py     template, tools, context      cloud.py   credentials, bucket, queue, role, image, gateway
recipe.py    the Dockerfile
"""
