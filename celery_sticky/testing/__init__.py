"""For tests of celery-sticky and of what is built with it: what happened, and whether it kept the promises."""
