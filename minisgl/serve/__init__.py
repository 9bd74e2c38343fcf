"""The HTTP server, `python -m minisgl.serve`: OpenAI's API and SGLang's native one.

    bytes --uvicorn--> limits.py --> app.py --> completions.py, chat.py, native.py
                       key, body,               body -> prompts and SamplingParams
                       how many                     |
                                                    v
    bytes <--uvicorn-- sse.py or JSON <-- Asked <-- desk.py --> Engine

One process: uvicorn's event loop answers sockets, threads read prompts, and the engine's thread
computes.  The loop never waits for any of them, and a client that leaves takes its work along.
"""
