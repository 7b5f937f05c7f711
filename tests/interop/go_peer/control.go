package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	bodyBytesMax   = 1 << 30
	commandSeconds = 60
)

// command answers one request with a value that becomes JSON. `body` is the request's body.
type command func(ctx context.Context, query func(string) string, body []byte) (any, error)

// commands are POST <control>/<name>?<parameters>. An error is status 500 with its text.
func commands(node host.Host, content *content, gossip *gossip, greeter *greeter) http.Handler {
	table := map[string]command{
		// connect?address=/ip4/.../p2p/<id>
		"connect": func(ctx context.Context, query func(string) string, _ []byte) (any, error) {
			info, err := peer.AddrInfoFromString(query("address"))
			if err != nil {
				return nil, err
			}
			return struct{}{}, node.Connect(ctx, *info)
		},
		// add, the file is the body -> {"cid"}
		"add": func(ctx context.Context, _ func(string) string, body []byte) (any, error) {
			root, err := content.addBytes(ctx, body)
			return map[string]string{"cid": root.String()}, err
		},
		// import, a CAR is the body -> {"cid"}
		"import": func(ctx context.Context, _ func(string) string, body []byte) (any, error) {
			root, err := content.importCAR(ctx, bytes.NewReader(body))
			return map[string]string{"cid": root.String()}, err
		},
		// fetch?cid= by bitswap -> received
		"fetch": func(ctx context.Context, query func(string) string, _ []byte) (any, error) {
			root, err := cid.Decode(query("cid"))
			if err != nil {
				return nil, err
			}
			return content.fetch(ctx, root)
		},
		// read?cid=&gateway=<base URL without /ipfs> block by block -> received
		"read": func(ctx context.Context, query func(string) string, _ []byte) (any, error) {
			root, err := cid.Decode(query("cid"))
			if err != nil {
				return nil, err
			}
			return readRemote(ctx, root, query("gateway"))
		},
		// exchange?peer=&protocol=&count=, the message is the body -> {"answer": base64, "seconds"}
		"exchange": func(ctx context.Context, query func(string) string, body []byte) (any, error) {
			to, err := peer.Decode(query("peer"))
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			answer, err := exchange(ctx, node, to, query("protocol"), body, number(query("count"), 1))
			seconds := time.Since(begun).Seconds()
			return map[string]any{"answer": answer, "seconds": seconds}, err
		},
		// welcome, the answer to a hello is the body
		"welcome": func(_ context.Context, _ func(string) string, body []byte) (any, error) {
			greeter.set(body)
			return struct{}{}, nil
		},
		// converse?peer=&protocol=&keep=, the messages are a JSON list of base64 -> [answer]
		"converse": func(ctx context.Context, query func(string) string, body []byte) (any, error) {
			to, err := peer.Decode(query("peer"))
			if err != nil {
				return nil, err
			}
			var messages [][]byte
			if err = json.Unmarshal(body, &messages); err != nil {
				return nil, err
			}
			return converse(ctx, node, to, query("protocol"), messages, query("keep") != "")
		},
		// send?peer=&protocol=, the bytes are the body
		"send": func(ctx context.Context, query func(string) string, body []byte) (any, error) {
			to, err := peer.Decode(query("peer"))
			if err != nil {
				return nil, err
			}
			return struct{}{}, send(ctx, node, to, query("protocol"), body)
		},
		"join": func(_ context.Context, query func(string) string, _ []byte) (any, error) {
			return struct{}{}, gossip.join(query("topic"))
		},
		// publish?topic=, the message is the body
		"publish": func(ctx context.Context, query func(string) string, body []byte) (any, error) {
			return struct{}{}, gossip.publish(ctx, query("topic"), body)
		},
		// messages?topic=&from= -> [message]
		"messages": func(_ context.Context, query func(string) string, _ []byte) (any, error) {
			return gossip.received(query("topic"), number(query("from"), 0)), nil
		},
		// neighbours?topic= -> [peer id]
		"neighbours": func(_ context.Context, query func(string) string, _ []byte) (any, error) {
			return gossip.peers(query("topic")), nil
		},
	}
	routes := http.NewServeMux()
	for name, run := range table {
		routes.HandleFunc("POST /"+name, answering(run))
	}
	return routes
}

func answering(run command) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		ctx, cancel := context.WithTimeout(request.Context(), commandSeconds*time.Second)
		defer cancel()
		body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, bodyBytesMax))
		var answer any
		if err == nil {
			answer, err = run(ctx, request.URL.Query().Get, body)
		}
		if err != nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
			return
		}
		response.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(response).Encode(answer)
	}
}

func number(text string, otherwise int) int {
	if found, err := strconv.Atoi(text); err == nil {
		return found
	}
	return otherwise
}
