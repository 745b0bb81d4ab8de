"""The shop's web service. A user and the mail to that user are written in one transaction."""

import sqlite3

from flask import Flask, request
from shop import connect, send_mail, sticky

web = Flask(__name__)


@web.post("/users")
def sign_up():
    """Add a user and send a welcome mail: both or neither."""
    email = request.get_json()["email"]
    connection = connect()
    try:
        with connection:  # one transaction
            with sticky.outbox(connection):
                send_mail.delay(email, "Welcome")
            connection.execute("INSERT INTO users VALUES (?)", (email,))
    except sqlite3.IntegrityError:
        return {"error": f"{email} has signed up already"}, 409  # the mail is rolled back too
    finally:
        connection.close()
    return {"email": email}, 201
