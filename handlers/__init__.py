"""The application: registering a handler module is its name in one line.

``streamfold replay events/*.jsonl`` runs it locally, ``lambda_handler`` is what AWS Lambda calls, and
``verify_handler`` what a schedule calls.
"""

from handlers import bank, documents, gaming, iot, music, search, sessions, shop, social
from streamfold import App

app = App("shop", routers=[bank, documents, gaming, iot, music, search, sessions, shop, social])
lambda_handler = app.lambda_handler
verify_handler = app.verify_handler
