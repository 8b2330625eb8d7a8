"""Images in prompts: checked when they arrive, kept once per session, and prepared as the model's own processor does.

In: images as agents send them, within canonical messages. Out: what the renderer and the engine need of them. This
folder fetches no URL, and decodes no format but PNG, JPEG, WebP and GIF.

Imports `engine`, `gateway.call`, `gateway.record`.
"""
