"""The world around an application, in process: what a user proves handlers against, without a server."""
