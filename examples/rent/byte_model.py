"""A very small language model behind OpenAI's API: the bytes of a text, two before each next one.

It needs numpy alone, learns in a second, and speaks nonsense. It stands for a model server such as
vLLM where there is no GPU: `python3 byte_model.py --port 8000 [--text FILE]`.
"""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

TEXT = (
    "A rental is a machine for a time. Nobody can say whether what ran there was right, so it "
    "makes no claim. It is paid by the minute, and vouchers alone decide how long it goes on. "
)
NAME = "byte-model"
TOKENS_DEFAULT, TOKENS_MAX = 32, 4096
STEP = 8  # bytes in one piece of a stream


class ByteModel:
    """Counts which byte follows each pair of bytes."""

    def __init__(self, text: bytes) -> None:
        data = np.frombuffer(text * 2, np.uint8).astype(np.int64)
        counts = np.zeros((256 * 256, 256), np.float32)
        np.add.at(counts, (data[:-2] * 256 + data[1:-1], data[2:]), 1)
        self._next = counts.argmax(axis=1)
        self._known = counts.any(axis=1)
        self._start = int(data[0]), int(data[1])

    def answer(self, prompt: bytes, count: int) -> bytes:
        first, second = prompt[-2:] if len(prompt) > 1 else self._start
        if not self._known[first * 256 + second]:
            first, second = self._start
        found = bytearray()
        for _ in range(count):
            first, second = second, int(self._next[first * 256 + second])
            found.append(second)
        return bytes(found)

    def embedding(self, text: bytes) -> list[float]:
        counts = np.bincount(np.frombuffer(text, np.uint8), minlength=256).astype(np.float32)
        length = float(np.linalg.norm(counts)) or 1.0
        return [round(float(value), 6) for value in counts / length]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet
    disable_nagle_algorithm = True
    model: ByteModel

    def do_GET(self) -> None:
        """Health, and the one model."""
        if self.path == "/health":
            return self._send({"ok": True})
        if self.path == "/v1/models":
            row = {"id": NAME, "object": "model", "created": 0, "owned_by": "quorate"}
            return self._send({"object": "list", "data": [row]})
        self._send({"error": {"message": f"no such path: {self.path}"}}, 404)

    def do_POST(self) -> None:
        """Chat, completions and embeddings."""
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        try:
            asked = json.loads(data)
            if self.path == "/v1/embeddings":
                return self._embed(asked)
            if self.path in ("/v1/chat/completions", "/v1/completions"):
                return self._complete(asked, is_chat="chat" in self.path)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return self._send({"error": {"message": f"{type(error).__name__}: {error}"}}, 400)
        self._send({"error": {"message": f"no such path: {self.path}"}}, 404)

    def _embed(self, asked: dict) -> None:
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        rows = [
            {"object": "embedding", "index": at, "embedding": self.model.embedding(text.encode())}
            for at, text in enumerate(texts)
        ]
        count = sum(len(text.encode()) for text in texts)
        usage = {"prompt_tokens": count, "total_tokens": count}
        self._send({"object": "list", "model": NAME, "data": rows, "usage": usage})

    def _complete(self, asked: dict, is_chat: bool) -> None:
        prompt = (asked["messages"][-1]["content"] if is_chat else asked["prompt"]).encode()
        count = min(int(asked.get("max_tokens") or TOKENS_DEFAULT), TOKENS_MAX)
        text = self.model.answer(prompt, count).decode("utf-8", "replace")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        usage["total_tokens"] = len(prompt) + count
        kind = "chat.completion" if is_chat else "text_completion"
        head = {"id": "byte", "object": kind, "created": int(time.time()), "model": NAME}
        if not asked.get("stream"):
            said = {"role": "assistant", "content": text}
            body = {"message": said} if is_chat else {"text": text}
            whole = {"index": 0, "finish_reason": "length", **body}
            return self._send({**head, "choices": [whole], "usage": usage})
        head["object"] += ".chunk" if is_chat else ""
        pause = float(asked.get("pause") or 0)
        self._begin("text/event-stream", None)
        for at in range(0, len(text), STEP):
            piece = text[at : at + STEP]
            body = {"delta": {"content": piece}} if is_chat else {"text": piece}
            self._event({**head, "choices": [{"index": 0, "finish_reason": None, **body}]})
            time.sleep(pause)
        self._event({**head, "choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, tree: dict) -> None:
        self._chunk(b"data: " + json.dumps(tree).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, tree: dict, status: int = 200) -> None:
        data = json.dumps(tree).encode()
        self._begin("application/json", len(data), status)
        self.wfile.write(data)
        self.wfile.flush()

    def _begin(self, kind: str, size: int | None, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: prompts are nobody's business."""


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--text", default="")
    given = parser.parse_args()
    text = TEXT.encode()
    if given.text:
        with open(given.text, "rb") as file:
            text = file.read()
    Handler.model = ByteModel(text)
    print(f"ready at port {given.port}", flush=True)
    Server(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
