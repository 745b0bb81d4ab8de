"""For tests of celery-sticky and of applications that use it: recorded histories, and checks of its promises."""
