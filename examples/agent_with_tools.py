"""An agent loop with tool calls. A session keeps it together even if it rewrites its history."""

import json
import os
import uuid

from openai import OpenAI

from prefixroute import Router

ENDPOINTS = os.environ.get("ENDPOINTS", "http://localhost:8000,http://localhost:8001").split(",")
MODEL = os.environ.get("MODEL", "simulated-model")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
    }
]

with Router(ENDPOINTS) as router, router.wrap(OpenAI(api_key="-")) as client:
    agent = client.with_options(default_headers={"x-session-id": str(uuid.uuid4())})
    messages = [
        {"role": "system", "content": "You are a careful agent. " * 50},
        {"role": "user", "content": "Summarise the files."},
    ]
    for step in range(4):
        reply = agent.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=TOOLS,
            tool_choice="required" if step < 3 else "none",
            max_tokens=64,
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            name = json.loads(call.function.arguments).get("name", "")
            content = f"contents of {name!r}: nothing of interest"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    used = [endpoint.url for endpoint in router.stats().endpoints if endpoint.requests]
    print(f"{len(messages)} messages, all at {used}")
