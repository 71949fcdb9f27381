from mlflow.server.auth import authenticate_request_basic_auth as authorize
