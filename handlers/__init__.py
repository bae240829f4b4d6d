"""The application: registering a handler module is its name in one line.

``streamfold replay events/*.jsonl`` runs it locally, ``lambda_handler`` is what AWS Lambda calls.
"""

from handlers import music, sessions, shop
from streamfold import App

app = App("shop", routers=[music, sessions, shop])
lambda_handler = app.lambda_handler
