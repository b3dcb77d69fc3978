"""Who calls, as routes need it."""

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from sluice.core.audit import Author
from sluice.edge.application import Caller


def caller_of(router: APIGatewayHttpRouter) -> Caller:
    caller: Caller = router.context["caller"]
    return caller


def author_of(router: APIGatewayHttpRouter) -> Author:
    request = router.current_event.raw_event["requestContext"]
    return Author(caller_of(router).actor, str(request.get("requestId", "")))
