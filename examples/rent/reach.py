"""Tries places from inside a rental, by itself and through its proxy. Prints those that it reached.

python3 reach.py '[["192.168.1.1", 80], ["169.254.169.254", 80]]'
"""

import json
import socket
import sys

PROXY = ("127.0.0.1", 3128)
REFUSED = ([b"400"], [b"403"])

reached = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), 2).close()
        reached.append([host, port, "directly"])
    except OSError:
        pass  # what it should be
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for asked in (f"CONNECT {where} HTTP/1.1", f"GET http://{where}/ HTTP/1.1"):
        with socket.create_connection(PROXY, 5) as link:
            link.sendall(f"{asked}\r\n\r\n".encode())
            if link.recv(64).split(b" ")[1:2] not in REFUSED:
                reached.append([host, port, asked])
print(json.dumps(reached))
