"""A shop with one SQL database for its users, the queue of its tasks and the ownership of keys, and no other server."""

import os
import smtplib
import sqlite3
import time
from email.message import EmailMessage

from celery import Celery

from celery_sticky import Sticky

DATABASE = os.environ.get("DATABASE", "shop.db")
SMTP_PORT = int(os.environ.get("SMTP_PORT", "1025"))

app = Celery("shop", broker=f"sticky+sqlite:///{DATABASE}")
app.conf.update(
    task_ignore_result=True,
    sticky_claim_ahead=1,  # what a kill leaves unsent, besides the mail that is being sent
    sticky_lease_ttl=3.0,  # short, to keep the example short: a dead worker's mails are listed after 4 s
    sticky_lease_margin=0.8,
    sticky_settle=0.5,
)
sticky = Sticky(app)


@app.task(key="recipient", delivery="at_most_once")
def send_mail(recipient, subject):
    """Send one mail. If the worker dies meanwhile, it is not sent again: a person decides."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", recipient, subject
    mail.set_content(f"{subject}!")
    with smtplib.SMTP("127.0.0.1", SMTP_PORT, timeout=10) as smtp:
        smtp.send_message(mail)
        time.sleep(0.05)  # a slow mail server


def connect():
    """Return a connection to the shop's database."""
    connection = sqlite3.connect(DATABASE, timeout=10)
    connection.execute("CREATE TABLE IF NOT EXISTS users (email TEXT PRIMARY KEY)")
    return connection
