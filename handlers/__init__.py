"""The application: a module of handlers is registered by its name, in the import and in the list.

``streamfold replay events/*.jsonl`` runs it locally, ``lambda_handler`` is what AWS Lambda calls.
``jobs_handler`` works on long fan-outs of feeds, and ``verify_handler`` is what a schedule calls.
"""

from handlers import bank, catalogue, documents, gaming, iot, music, search, sessions, shop, social, tickets
from streamfold import App

app = App("shop", routers=[bank, catalogue, documents, gaming, iot, music, search, sessions, shop, social, tickets])
lambda_handler = app.lambda_handler
jobs_handler = app.jobs_handler
verify_handler = app.verify_handler
