"""Idempotency: calls with the same ClientToken and parameters take effect once, and get the same answer."""

from __future__ import annotations

from functools import wraps

from .call import Action, CloudCall
from .protocol import Answer, EC2Error


def once(action: Action) -> Action:
    """Make an action idempotent by ClientToken. A failed call has no effect, and can be repeated.

    Raises:
        EC2Error: IdempotentParameterMismatch
    """

    @wraps(action)
    def done_once(call: CloudCall) -> Answer:
        token = call.ask.get("ClientToken")
        if not token:
            return action(call)
        request = {name: value for name, value in call.ask.items() if name != "ClientToken"}
        known = call.region.answered.get((call.action, token))
        if known is not None:
            if known[0] != request:
                words = "The parameters of the request do not match those of an earlier one with the same client token"
                raise EC2Error("IdempotentParameterMismatch", words)
            answer: Answer = known[1]
            terse = call.action == "CreateFleet" and call.region.state.behaviour.terse_repeats
            return {"FleetId": answer["FleetId"]} if terse else answer
        answer = action(call)
        call.region.answered[call.action, token] = request, answer
        return answer

    return done_once
